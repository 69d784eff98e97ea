//! Places in a topic, and what lies behind them: computed from the list of ledgers alone, so nothing has to be loaded for it.

use std::cmp::Ordering;

use trimtab_events::{LastLedger, LedgerInfo, Position};

use super::metadata::Hole;

/// A topic's ledgers as one row of entries.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    ledgers: &'a [LedgerInfo],
    last: &'a LastLedger,
}

/// Where a position is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// There is such an entry.
    Entry,
    /// In the open last ledger, of which the list does not say how long it is.
    Open,
    /// Not an entry: its ledger is not listed (any more), or is shorter than that.
    Nowhere,
}

/// What a subscription still has before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Entries: messages, or batches of them.
    pub entries: i64,
    /// Their bytes, one replica. Where a ledger is read in part, in proportion to its entries.
    pub bytes: i64,
    /// There may be more: some ledger, the open last one as a rule, does not say how long it is.
    pub at_least: bool,
}

impl<'a> Row<'a> {
    /// Of a list in order of id, and what BookKeeper says of its last ledger.
    pub fn new(ledgers: &'a [LedgerInfo], last: &'a LastLedger) -> Row<'a> {
        Row { ledgers, last }
    }

    /// Entries and bytes of a ledger of the list, if they are known.
    fn size(&self, index: usize) -> Option<(i64, i64)> {
        let info = self.ledgers.get(index)?;
        let listed = info.entries.zip(info.bytes);
        let known = match self.last {
            LastLedger::Closed { entries, bytes, .. } if index + 1 == self.ledgers.len() => {
                listed.or(Some((*entries, *bytes)))
            }
            // BookKeeper does not have it: it is dropped when the topic is loaded.
            LastLedger::Missing if index + 1 == self.ledgers.len() => listed.or(Some((0, 0))),
            _ => listed,
        };
        known.filter(|(entries, bytes)| *entries >= 0 && *bytes >= 0)
    }

    fn find(&self, ledger: i64) -> Result<usize, usize> {
        self.ledgers.binary_search_by_key(&ledger, |info| info.id)
    }

    /// Where a position is.
    pub fn place(&self, position: Position) -> Place {
        let Ok(index) = self.find(position.ledger) else { return Place::Nowhere };
        match self.size(index) {
            _ if position.entry < 0 => Place::Nowhere,
            Some((entries, _)) if position.entry < entries => Place::Entry,
            Some(_) => Place::Nowhere,
            None if index + 1 == self.ledgers.len() => Place::Open,
            None => Place::Nowhere,
        }
    }

    /// The first entry after a position: what is delivered next by a cursor there. Where the ledgers end it is the entry that will
    /// be written next. None when the list cannot tell.
    pub fn after(&self, position: Position) -> Option<Position> {
        let from = match self.find(position.ledger) {
            Ok(index) => match self.size(index) {
                Some((entries, _)) if position.entry.saturating_add(1) >= entries && index + 1 < self.ledgers.len() => {
                    index + 1
                }
                Some(_) => return Some(Position { ledger: position.ledger, entry: position.entry.saturating_add(1) }),
                // An open ledger in the middle of a list: nobody knows where it ends.
                None if index + 1 < self.ledgers.len() => return None,
                None => return Some(Position { ledger: position.ledger, entry: position.entry.saturating_add(1) }),
            },
            Err(index) => index,
        };
        let empty = |index: &usize| index + 1 < self.ledgers.len() && self.size(*index).is_some_and(|(n, _)| n == 0);
        let index = (from..self.ledgers.len()).find(|index| !empty(index))?;
        Some(Position { ledger: self.ledgers[index].id, entry: 0 })
    }

    /// The last entry before a position; none when there is none, or the list cannot tell.
    pub fn before(&self, position: Position) -> Option<Position> {
        if position.entry > 0 && self.find(position.ledger).is_ok() {
            return Some(Position { ledger: position.ledger, entry: position.entry - 1 });
        }
        let upto = self.find(position.ledger).unwrap_or_else(|index| index);
        for index in (0..upto).rev() {
            let (entries, _) = self.size(index)?;
            if entries > 0 {
                return Some(Position { ledger: self.ledgers[index].id, entry: entries - 1 });
            }
        }
        None
    }

    /// What a cursor at a position has before it, apart from what it has acknowledged beyond it.
    pub fn backlog(&self, position: Position, holes: &[Hole]) -> Backlog {
        let first = self.find(position.ledger).unwrap_or_else(|index| index);
        let mut acknowledged = vec![0_i64; self.ledgers.len() - first];
        for hole in holes {
            let from = self.find(hole.after.ledger).unwrap_or_else(|index| index).max(first);
            for index in from..self.ledgers.len() {
                let id = self.ledgers[index].id;
                if id > hole.last.ledger {
                    break;
                }
                let entries = self.size(index).map_or(i64::MAX, |(entries, _)| entries);
                let within = |place: Position, otherwise: i64| match place.ledger.cmp(&id) {
                    Ordering::Less => 0,
                    Ordering::Equal => place.entry.saturating_add(1).clamp(0, entries),
                    Ordering::Greater => otherwise,
                };
                let begin = within(hole.after.max(position), entries);
                let end = within(hole.last, entries);
                acknowledged[index - first] += end.saturating_sub(begin).max(0);
            }
        }
        let mut backlog = Backlog::default();
        for index in first..self.ledgers.len() {
            let Some((entries, bytes)) = self.size(index) else {
                backlog.at_least = true;
                continue;
            };
            let read = if self.ledgers[index].id == position.ledger { position.entry.saturating_add(1) } else { 0 };
            let left = entries - read.clamp(0, entries) - acknowledged[index - first].clamp(0, entries);
            let left = left.max(0);
            backlog.entries = backlog.entries.saturating_add(left);
            let share = i128::from(bytes) * i128::from(left) / i128::from(entries.max(1));
            backlog.bytes = backlog.bytes.saturating_add(i64::try_from(share).unwrap_or(i64::MAX));
        }
        backlog
    }
}

/// The entries of a run, one by one and as far as the list knows them; none when there are more than `limit`.
pub(super) fn entries_of(row: &Row<'_>, hole: &Hole, limit: usize) -> Option<Vec<Position>> {
    let mut entries = Vec::new();
    let mut at = hole.after;
    while let Some(next) = row.after(at).filter(|next| *next <= hole.last) {
        if entries.len() == limit {
            return None;
        }
        entries.push(next);
        at = next;
    }
    Some(entries)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ledger: i64, entry: i64) -> Position {
        Position { ledger, entry }
    }

    fn info(id: i64, size: Option<(i64, i64)>) -> LedgerInfo {
        let closed_ms = size.map_or(0, |_| 1);
        LedgerInfo { id, entries: size.map(|s| s.0), bytes: size.map(|s| s.1), closed_ms, offload: None }
    }

    fn list() -> Vec<LedgerInfo> {
        vec![info(3, Some((10, 1000))), info(5, Some((0, 0))), info(7, Some((4, 800))), info(9, None)]
    }

    #[test]
    fn places() {
        let list = list();
        let row = Row::new(&list, &LastLedger::Open);
        for (position, place) in [
            (at(3, 0), Place::Entry),
            (at(3, 9), Place::Entry),
            (at(3, 10), Place::Nowhere),
            (at(3, -1), Place::Nowhere),
            (at(4, 0), Place::Nowhere),
            (at(5, 0), Place::Nowhere),
            (at(9, 5), Place::Open),
            (at(10, 0), Place::Nowhere),
        ] {
            assert_eq!(row.place(position), place, "{position}");
        }
        let closed = LastLedger::Closed { entries: 2, bytes: 20, closed_ms: 5 };
        let row = Row::new(&list, &closed);
        assert_eq!((row.place(at(9, 1)), row.place(at(9, 2))), (Place::Entry, Place::Nowhere));
        assert_eq!(Row::new(&list, &LastLedger::Missing).place(at(9, 0)), Place::Nowhere);
    }

    #[test]
    fn what_comes_after() {
        let list = list();
        let row = Row::new(&list, &LastLedger::Open);
        for (position, next) in [
            (at(1, 7), Some(at(3, 0))),
            (at(3, -1), Some(at(3, 0))),
            (at(3, 8), Some(at(3, 9))),
            // over the end of a ledger and an empty one
            (at(3, 9), Some(at(7, 0))),
            (at(5, -1), Some(at(7, 0))),
            (at(7, 3), Some(at(9, 0))),
            (at(9, 4), Some(at(9, 5))),
            (at(11, 0), None),
        ] {
            assert_eq!(row.after(position), next, "{position}");
        }
        let odd = [info(1, None), info(2, Some((1, 1)))];
        assert_eq!(Row::new(&odd, &LastLedger::Open).after(at(1, 0)), None);
    }

    #[test]
    fn what_comes_before() {
        let list = list();
        let row = Row::new(&list, &LastLedger::Open);
        for (position, before) in [
            (at(9, 5), Some(at(9, 4))),
            (at(9, 0), Some(at(7, 3))),
            (at(7, 0), Some(at(3, 9))),
            (at(3, 0), None),
            (at(11, 4), None),
        ] {
            assert_eq!(row.before(position), before, "{position}");
        }
    }

    #[test]
    fn backlogs() {
        let list = list();
        let open = Row::new(&list, &LastLedger::Open);
        let sizes = |b: Backlog| (b.entries, b.bytes, b.at_least);
        assert_eq!(sizes(open.backlog(at(3, -1), &[])), (14, 1800, true));
        assert_eq!(sizes(open.backlog(at(3, 4), &[])), (9, 1300, true));
        assert_eq!(sizes(open.backlog(at(3, 9), &[])), (4, 800, true));
        assert_eq!(sizes(open.backlog(at(1, 5), &[])), (14, 1800, true));
        assert_eq!(sizes(open.backlog(at(9, 3), &[])), (0, 0, true));
        let closed = LastLedger::Closed { entries: 2, bytes: 20, closed_ms: 5 };
        let closed = Row::new(&list, &closed);
        assert_eq!(sizes(closed.backlog(at(7, 3), &[])), (2, 20, false));
        assert_eq!(sizes(closed.backlog(at(9, 1), &[])), (0, 0, false));
        // A hole inside a ledger, one over the end of a ledger, and one that begins before the position.
        let hole = |after, last| Hole { after, last };
        assert_eq!(sizes(open.backlog(at(3, 0), &[hole(at(3, 1), at(3, 3))])), (11, 1500, true));
        assert_eq!(sizes(open.backlog(at(3, 0), &[hole(at(3, 7), at(7, 1))])), (9, 1100, true));
        assert_eq!(sizes(open.backlog(at(3, 4), &[hole(at(3, 1), at(3, 5))])), (8, 1200, true));
        assert_eq!(sizes(open.backlog(at(3, 4), &[hole(at(9, 1), at(9, 5))])), (9, 1300, true));
        let entries = entries_of(&open, &hole(at(3, 7), at(7, 1)), 10);
        assert_eq!(entries, Some(vec![at(3, 8), at(3, 9), at(7, 0), at(7, 1)]));
        assert_eq!(entries_of(&open, &hole(at(3, 7), at(7, 1)), 3), None);
    }

    proptest! {
        /// Against counting every entry.
        #[test]
        fn equal_to_counting(
            sizes in proptest::collection::vec(0_i64..6, 1..6),
            from in (0_i64..14, -1_i64..6),
            holes in proptest::collection::vec((0_i64..12, -1_i64..6, 0_i64..12, -1_i64..6), 0..4),
        ) {
            let list: Vec<LedgerInfo> =
                sizes.iter().enumerate().map(|(i, n)| info(2 * i as i64 + 1, Some((*n, n * 7)))).collect();
            let row = Row::new(&list, &LastLedger::Open);
            // Holes do not overlap.
            let mut holes: Vec<Hole> =
                holes.iter().map(|(a, b, c, d)| Hole { after: at(*a, *b), last: at(*c, *d) }).collect();
            holes.retain(|hole| hole.after < hole.last);
            holes.sort_by_key(|hole| hole.after);
            let mut end = at(-1, -1);
            holes.retain(|hole| { let apart = hole.after >= end; if apart { end = hole.last; } apart });
            let position = at(from.0, from.1);
            let all = list.iter().flat_map(|l| (0..l.entries.unwrap()).map(move |e| at(l.id, e)));
            let left = all
                .filter(|p| *p > position && !holes.iter().any(|h| *p > h.after && *p <= h.last))
                .count() as i64;
            let backlog = row.backlog(position, &holes);
            prop_assert_eq!((backlog.entries, backlog.bytes), (left, left * 7));
            prop_assert!(!backlog.at_least);
        }
    }
}
