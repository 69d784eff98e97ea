//! Sets of NATS subjects, as consumers read them: tokens between dots, `*` is any one token, `>` any one or more at the end. A consumer
//! without any filter reads everything.

/// Whether everything that `narrow` reads is also read by `wide`. Said only when one of its filters alone covers each of the other's.
pub(super) fn covers(wide: &[String], narrow: &[String]) -> bool {
    if wide.is_empty() {
        return true;
    }
    let any = |narrow: &str| wide.iter().any(|wide| subject_covers(wide, narrow));
    if narrow.is_empty() { any(">") } else { narrow.iter().all(|narrow| any(narrow)) }
}

/// Whether there is a subject that both read.
pub(super) fn overlap(one: &[String], other: &[String]) -> bool {
    one.is_empty() || other.is_empty() || one.iter().any(|one| other.iter().any(|other| subjects_overlap(one, other)))
}

fn subject_covers(wide: &str, narrow: &str) -> bool {
    let (mut wide, mut narrow) = (wide.split('.'), narrow.split('.'));
    loop {
        match (wide.next(), narrow.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some("*"), Some(token)) if token != ">" => {}
            (Some(token), Some(other)) if token == other => {}
            _ => return false,
        }
    }
}

fn subjects_overlap(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.split('.'), other.split('.'));
    loop {
        match (one.next(), other.next()) {
            (Some(">"), Some(_)) | (Some(_), Some(">")) | (None, None) => return true,
            (Some("*"), Some(_)) | (Some(_), Some("*")) => {}
            (Some(token), Some(same)) if token == same => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(filters: &[&str]) -> Vec<String> {
        filters.iter().map(|filter| (*filter).to_owned()).collect()
    }

    #[test]
    fn what_covers_what() {
        for (wide, narrow, covered) in [
            (&[][..], &["a"][..], true),
            (&[], &[], true),
            (&["a"], &[], false),
            (&[">"], &[], true),
            (&["a.>"], &["a.b", "a.*.c"], true),
            (&["a.>"], &["a"], false),
            (&["a.*"], &["a.b"], true),
            (&["a.*"], &["a.>"], false),
            (&["a.*"], &["a.b.c"], false),
            (&["a.b"], &["a.*"], false),
            (&["*.b"], &["a.b"], true),
            (&["a", "b"], &["b", "a"], true),
            (&["a", "b"], &["b", "c"], false),
            (&["a.>"], &["a.>"], true),
            (&["a.*.>"], &["a.>"], false),
        ] {
            assert_eq!(covers(&set(wide), &set(narrow)), covered, "{wide:?} over {narrow:?}");
        }
    }

    #[test]
    fn what_overlaps_what() {
        for (one, other, both) in [
            (&[][..], &["a"][..], true),
            (&["a"], &["a"], true),
            (&["a"], &["b"], false),
            (&["a.*"], &["*.b"], true),
            (&["a.>"], &["a"], false),
            (&["a.>"], &["a.b.c"], true),
            (&["a.*.c"], &["a.b.d"], false),
            (&["a.b"], &["a.b.>"], false),
            (&["a", "b.>"], &["c", "b.x"], true),
        ] {
            assert_eq!(overlap(&set(one), &set(other)), both, "{one:?} and {other:?}");
            assert_eq!(overlap(&set(other), &set(one)), both, "{other:?} and {one:?}");
        }
    }

    /// By brute force over all subjects of up to three tokens from a small alphabet.
    #[test]
    fn both_agree_with_what_subjects_match() {
        let tokens = ["a", "b", "*", ">"];
        let mut filters = Vec::new();
        for one in tokens {
            filters.push(one.to_owned());
            for two in tokens.iter().filter(|_| one != ">") {
                filters.push(format!("{one}.{two}"));
                for three in tokens.iter().filter(|_| *two != ">") {
                    filters.push(format!("{one}.{two}.{three}"));
                }
            }
        }
        let literal = |filter: &&String| !filter.contains(['*', '>']);
        // A third letter, so that no list of literals looks like everything, and one token more than any filter has.
        let longer = [
            "c", "a.c", "c.a", "b.c", "c.b", "c.c", "a.a.c", "b.b.c", "c.c.c", "a.b.c", "a.a.a.a", "b.a.c.a", "c.c.c.c",
        ];
        let subjects: Vec<String> = filters.iter().filter(literal).cloned().chain(longer.map(str::to_owned)).collect();
        let matched =
            |filter: &str| -> Vec<&String> { subjects.iter().filter(|s| subject_covers(filter, s)).collect() };
        for one in &filters {
            for other in &filters {
                let (a, b) = (matched(one), matched(other));
                let both = a.iter().any(|subject| b.contains(subject));
                assert_eq!(subjects_overlap(one, other), both, "{one} and {other}");
                if subject_covers(one, other) {
                    assert!(b.iter().all(|subject| a.contains(subject)), "{one} over {other}");
                }
            }
        }
    }
}
