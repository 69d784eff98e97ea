//! Signatures on decisions and outcomes (Ed25519 nkeys). Permissions on subjects do not stop a forged decision: a server stores
//! what a reply subject names. So a decision is obeyed only when a trusted decider signed it.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use nkeys::KeyPair;
use tokio::sync::oneshot;
use trimtab_events::Event;

/// Why a key cannot be used, or an event is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// A seed or public key is not one.
    #[error("{0} is not a usable key: {1}; make one with `trimtab keys new`")]
    Key(String, String),
    /// Whoever signed for several failed.
    #[error("the task that was signing events together was stopped")]
    Desk,
    /// The event has no signature, or a wrong one, or one of somebody unknown.
    #[error("event {id} is not believed: {why}")]
    Unbelieved {
        /// Its id.
        id: String,
        /// Why.
        why: String,
    },
}

/// Signs with one's own key.
pub struct Signer {
    pair: KeyPair,
    public: String,
}

impl Signer {
    fn of(pair: KeyPair) -> Signer {
        Signer { public: pair.public_key(), pair }
    }

    /// A key that lives as long as this process: for roles that run in one process.
    pub fn ephemeral() -> Signer {
        Signer::of(KeyPair::new_user())
    }

    /// A key from a file with its seed.
    ///
    /// # Errors
    /// When the file cannot be read or holds no seed.
    pub fn from_file(path: &Path) -> Result<Signer, SignError> {
        let bad = |why: String| SignError::Key(path.display().to_string(), why);
        let text = std::fs::read_to_string(path).map_err(|e| bad(e.to_string()))?;
        KeyPair::from_seed(text.trim()).map(Signer::of).map_err(|e| bad(e.to_string()))
    }

    /// A key from its seed.
    ///
    /// # Errors
    /// When it is none.
    pub fn from_seed(seed: &str) -> Result<Signer, SignError> {
        let bad = |e: nkeys::error::Error| SignError::Key("the seed".to_owned(), e.to_string());
        KeyPair::from_seed(seed).map(Signer::of).map_err(bad)
    }

    /// The public key, for [`Trusted`].
    pub fn public_key(&self) -> String {
        self.public.clone()
    }

    /// The seed, to be kept secret.
    ///
    /// # Errors
    /// Never for keys made here.
    pub fn seed(&self) -> Result<String, SignError> {
        self.pair.seed().map_err(|e| SignError::Key("the key".to_owned(), e.to_string()))
    }

    /// Signs an event.
    ///
    /// # Errors
    /// Never for keys made here.
    pub fn sign(&self, event: &mut Event) -> Result<(), SignError> {
        let signature = self.raw(&event.signed_bytes())?;
        event.signer = Some(self.public_key());
        event.signature = Some(signature);
        event.proof = None;
        Ok(())
    }

    /// Signs events that were made together with one signature: over the root of a tree of their hashes. Each carries the
    /// signature and the way from itself to the root, so each can be checked without the others.
    ///
    /// # Errors
    /// Never for keys made here and less than 2^16 events.
    pub fn sign_all<'a>(&self, events: impl IntoIterator<Item = &'a mut Event>) -> Result<(), SignError> {
        let mut events: Vec<&mut Event> = events.into_iter().collect();
        if let [one] = events.as_mut_slice() {
            return self.sign(one);
        }
        let leaves = events.iter().map(|event| leaf(event)).collect();
        let Some((root, proofs)) = tree::grow(leaves) else { return Ok(()) };
        let signature = self.raw(&tree::signed_root(&root))?;
        for (event, proof) in events.into_iter().zip(proofs) {
            event.signer = Some(self.public_key());
            event.signature = Some(signature.clone());
            event.proof = Some(BASE64.encode(proof));
        }
        Ok(())
    }

    fn raw(&self, bytes: &[u8]) -> Result<String, SignError> {
        let signature = self.pair.sign(bytes).map_err(|e| SignError::Key("the key".to_owned(), e.to_string()))?;
        Ok(BASE64.encode(signature))
    }
}

/// Where events that are made at the same moment by several tasks are signed together: a signature costs more than everything else
/// that is done about a decision. Nobody waits for others: what is there when it is one's turn is signed.
#[derive(Default)]
pub struct Desk {
    waiting: Mutex<Vec<Ticket>>,
}

/// Events to be signed, and who wants them back.
struct Ticket {
    events: Vec<Event>,
    to: oneshot::Sender<Result<Vec<Event>, SignError>>,
}

/// Signed together at most, in whole tickets: the more there are, the longer is the way to the root that each carries.
const TOGETHER: usize = 256;

impl Desk {
    /// Signs these events, together with what others bring.
    ///
    /// # Errors
    /// As [`Signer::sign_all`].
    pub async fn sign(&self, signer: &Signer, events: Vec<Event>) -> Result<Vec<Event>, SignError> {
        let (to, signed) = oneshot::channel();
        // Nothing panics while it holds this.
        let waiting = || self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting().push(Ticket { events, to });
        // Who has events ready comes by first. Whoever comes back first signs for all; a task that is given up leaves its ticket
        // to the others, or alone, where nobody misses it.
        tokio::task::yield_now().await;
        let mut tickets = std::mem::take(&mut *waiting());
        while !tickets.is_empty() {
            let mut count = 0;
            let fits = tickets.iter().take_while(|ticket| {
                count += ticket.events.len();
                count <= TOGETHER
            });
            let mut group: Vec<Ticket> = tickets.drain(..fits.count().max(1)).collect();
            let done = signer.sign_all(group.iter_mut().flat_map(|ticket| &mut ticket.events));
            for Ticket { events, to } in group {
                let _ = to.send(done.clone().map(|()| events));
            }
        }
        signed.await.unwrap_or(Err(SignError::Desk))
    }
}

/// Whose signatures are believed.
#[derive(Debug, Clone, Default)]
pub struct Trusted {
    keys: BTreeMap<String, KeyPair>,
    /// Roots whose signature was found to fit, oldest first. A root has up to as many events as a page has candidates, and they
    /// come soon after each other.
    roots: Arc<Mutex<VecDeque<SeenRoot>>>,
}

/// How many signed roots are remembered: more than decisions are outstanding at once, by default, in whole pages.
const SEEN_ROOTS: usize = 64;

#[derive(Debug, Clone, PartialEq, Eq)]
struct SeenRoot {
    root: tree::Hash,
    signature: Vec<u8>,
    signer: String,
}

impl Trusted {
    /// These public keys.
    ///
    /// # Errors
    /// When one is not a public key.
    pub fn new(keys: impl IntoIterator<Item = String>) -> Result<Trusted, SignError> {
        let pair = |key: String| match KeyPair::from_public_key(&key) {
            Ok(pair) => Ok((key, pair)),
            Err(e) => Err(SignError::Key(format!("{key:?}"), e.to_string())),
        };
        Ok(Trusted { keys: keys.into_iter().map(pair).collect::<Result<_, _>>()?, roots: Arc::default() })
    }

    /// Checks that somebody trusted signed exactly this event, alone or with others.
    ///
    /// # Errors
    /// Why it is not believed.
    pub fn check(&self, event: &Event) -> Result<(), SignError> {
        let unbelieved = |why: String| SignError::Unbelieved { id: event.id.clone(), why };
        let (Some(signer), Some(signature)) = (&event.signer, &event.signature) else {
            return Err(unbelieved("it is not signed".to_owned()));
        };
        let Some(key) = self.keys.get(signer) else {
            return Err(unbelieved(format!("its signer {signer} is not trusted here")));
        };
        let decode = |what: &str, text: &str| {
            BASE64.decode(text).map_err(|e| unbelieved(format!("its {what} is not base64: {e}")))
        };
        let signature = decode("signature", signature)?;
        let fits = |bytes: &[u8]| {
            key.verify(bytes, &signature).map_err(|_| unbelieved("its signature does not fit".to_owned()))
        };
        let Some(proof) = &event.proof else { return fits(&event.signed_bytes()) };
        let proof = decode("proof", proof)?;
        let root = tree::climb(leaf(event), &proof)
            .ok_or_else(|| unbelieved("its proof is not a way through a tree".to_owned()))?;
        // Nothing panics while it holds this.
        let roots = || self.roots.lock().unwrap_or_else(PoisonError::into_inner);
        if roots().iter().any(|seen| seen.root == root && seen.signature == signature && seen.signer == *signer) {
            return Ok(());
        }
        fits(&tree::signed_root(&root))?;
        let mut roots = roots();
        if roots.len() >= SEEN_ROOTS {
            roots.pop_front();
        }
        roots.push_back(SeenRoot { root, signature, signer: signer.clone() });
        Ok(())
    }
}

fn leaf(event: &Event) -> tree::Hash {
    tree::leaf(|to| event.feed_signed(to))
}

/// A tree of hashes as in RFC 6962, section 2.1: leaves and inner nodes are hashed apart, so that neither passes for the other. A
/// node without a partner moves up as it is.
mod tree {
    use sha2::{Digest, Sha256};

    pub(super) type Hash = [u8; 32];

    /// Before a root that is signed. What is signed of an event that is signed alone begins with the length of its id, which is
    /// never this text.
    const ROOT: &[u8] = b"trimtab events v1 ";
    /// The most levels of a proof: as many as 2^16 events have.
    const LEVELS: usize = 16;

    /// Of the bytes that `feed` hands out.
    pub(super) fn leaf(feed: impl FnOnce(&mut dyn FnMut(&[u8]))) -> Hash {
        let mut hash = Sha256::new_with_prefix([0]);
        feed(&mut |part| hash.update(part));
        hash.finalize().into()
    }

    fn node(left: &Hash, right: &Hash) -> Hash {
        Sha256::new_with_prefix([1]).chain_update(left).chain_update(right).finalize().into()
    }

    pub(super) fn signed_root(root: &Hash) -> Vec<u8> {
        [ROOT, root].concat()
    }

    /// The root, and the proof of each leaf: for each level on which it has a partner, the side on which that stands (0 left,
    /// 1 right) and its hash. None without leaves, or with more than a proof reaches.
    pub(super) fn grow(leaves: Vec<Hash>) -> Option<(Hash, Vec<Vec<u8>>)> {
        if leaves.is_empty() || leaves.len() > 1 << LEVELS {
            return None;
        }
        let levels = leaves.len().next_power_of_two().ilog2() as usize;
        let mut proofs: Vec<Vec<u8>> =
            leaves.iter().map(|_| Vec::with_capacity(levels * (1 + size_of::<Hash>()))).collect();
        let mut level = leaves;
        let mut width = 1;
        while level.len() > 1 {
            for (leaf, proof) in proofs.iter_mut().enumerate() {
                let at = leaf / width;
                if let Some(partner) = level.get(at ^ 1) {
                    proof.push(u8::from(at.is_multiple_of(2)));
                    proof.extend_from_slice(partner);
                }
            }
            level = level.chunks(2).map(|pair| pair.get(1).map_or(pair[0], |right| node(&pair[0], right))).collect();
            width *= 2;
        }
        Some((level[0], proofs))
    }

    /// The root that a proof leads to.
    pub(super) fn climb(leaf: Hash, proof: &[u8]) -> Option<Hash> {
        let steps = proof.chunks_exact(1 + size_of::<Hash>());
        if !steps.remainder().is_empty() || steps.len() > LEVELS {
            return None;
        }
        let mut at = leaf;
        for step in steps {
            let partner: &Hash = step[1..].try_into().ok()?;
            at = match step[0] {
                0 => node(partner, &at),
                1 => node(&at, partner),
                _ => return None,
            };
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use trimtab_events::{ScanRequest, Scope, Trace, Trigger};

    fn event() -> Event {
        let body =
            ScanRequest { id: uuid::Uuid::nil(), target: "p".into(), scope: Scope::default(), trigger: Trigger::Cli };
        Event::new("1", "/trimtab/test", "p", jiff::Timestamp::UNIX_EPOCH, Trace::default(), body).unwrap()
    }

    #[test]
    fn only_what_a_trusted_key_signed_is_believed() {
        let signer = Signer::ephemeral();
        let trusted = Trusted::new([signer.public_key()]).unwrap();
        assert!(trusted.check(&event()).is_err());
        let mut signed = event();
        signer.sign(&mut signed).unwrap();
        assert_eq!(trusted.check(&signed), Ok(()));
        let back = Event::from_bytes(&signed.to_bytes().unwrap()).unwrap();
        assert_eq!(trusted.check(&back), Ok(()));
        for change in [
            |e: &mut Event| e.action = "x".into(),
            |e: &mut Event| e.subject = "x".into(),
            |e: &mut Event| e.id = "x".into(),
            |e: &mut Event| e.data = serde_json::value::to_raw_value(&1).unwrap().into(),
        ] {
            let mut forged = signed.clone();
            change(&mut forged);
            assert!(trusted.check(&forged).is_err());
        }
        let mut other = event();
        Signer::ephemeral().sign(&mut other).unwrap();
        assert!(trusted.check(&other).is_err());
    }

    /// So many events with ids of their own, signed together.
    fn together(signer: &Signer, count: usize) -> Vec<Event> {
        let mut events: Vec<Event> = (0..count).map(|n| Event { id: format!("e{n}"), ..event() }).collect();
        signer.sign_all(&mut events).unwrap();
        events
    }

    #[test]
    fn events_signed_together_are_believed_each_by_itself() {
        let signer = Signer::ephemeral();
        for count in 0..=70 {
            let trusted = Trusted::new([signer.public_key()]).unwrap();
            for event in together(&signer, count) {
                let back = Event::from_bytes(&event.to_bytes().unwrap()).unwrap();
                assert_eq!(trusted.check(&back), Ok(()), "{} of {count}", event.id);
                assert_eq!(event.proof.is_some(), count > 1);
                assert_eq!(Trusted::new([signer.public_key()]).unwrap().check(&back), Ok(()), "without the others");
            }
        }
    }

    #[tokio::test]
    async fn what_is_ready_at_the_same_moment_has_one_signature_and_goes_back_to_its_own() {
        let (signer, desk) = (Signer::ephemeral(), Desk::default());
        let trusted = Trusted::new([signer.public_key()]).unwrap();
        let (signer, desk) = (&signer, &desk);
        let bring = |who: usize, count: usize| async move {
            let events = (0..count).map(|n| Event { id: format!("{who}-{n}"), ..event() }).collect();
            desk.sign(signer, events).await.unwrap()
        };
        let back = futures::future::join_all((0..10).map(|who| bring(who, who + 1))).await;
        for (who, events) in back.iter().enumerate() {
            let ids: Vec<String> = events.iter().map(|event| event.id.clone()).collect();
            assert_eq!(ids, (0..=who).map(|n| format!("{who}-{n}")).collect::<Vec<_>>());
            events.iter().for_each(|event| assert_eq!(trusted.check(event), Ok(())));
        }
        let signatures = |back: &[Vec<Event>]| {
            back.iter().flatten().map(|event| event.signature.clone().unwrap()).collect::<BTreeSet<_>>()
        };
        assert_eq!(signatures(&back).len(), 1);
        // More than are signed together, and a ticket that is itself more.
        let back = futures::future::join_all((0..20).map(|who| bring(who, if who == 3 { 600 } else { 100 }))).await;
        assert!(back.iter().flatten().all(|event| trusted.check(event).is_ok()));
        assert_eq!(signatures(&back).len(), 11);
        assert_eq!(bring(0, 1).await[0].proof, None);
    }

    #[tokio::test]
    async fn who_gives_up_while_others_wait_takes_nothing_with_it() {
        use futures::FutureExt;
        let (signer, desk) = (Signer::ephemeral(), Desk::default());
        let trusted = Trusted::new([signer.public_key()]).unwrap();
        let mut gives_up = Box::pin(desk.sign(&signer, together(&signer, 2)));
        assert!(gives_up.as_mut().now_or_never().is_none());
        let mut waits = Box::pin(desk.sign(&signer, together(&signer, 3)));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(gives_up);
        let back = waits.await.unwrap();
        assert!(back.len() == 3 && back.iter().all(|event| trusted.check(event).is_ok()));
        assert!(desk.waiting.lock().unwrap().is_empty());
    }

    /// Every way to change one byte of a text that base64 or an attribute may be.
    fn changed(text: &str) -> impl Iterator<Item = String> {
        (0..text.len()).flat_map(move |at| {
            let other = if text.as_bytes()[at] == b'A' { "B" } else { "A" };
            [[&text[..at], other, &text[at + 1..]].concat(), [&text[..at], &text[at + 1..]].concat()]
        })
    }

    /// One that has seen the true events already must refuse as well: it remembers roots, not events.
    fn refused(trusted: &Trusted, signer: &Signer, forged: &Event, what: &str) {
        assert!(trusted.check(forged).is_err(), "{what}");
        assert!(Trusted::new([signer.public_key()]).unwrap().check(forged).is_err(), "{what}, seen first");
    }

    #[test]
    fn nothing_of_an_event_signed_with_others_can_be_changed() {
        let signer = Signer::ephemeral();
        let trusted = Trusted::new([signer.public_key()]).unwrap();
        let events = together(&signer, 5);
        events.iter().for_each(|event| trusted.check(event).unwrap());
        type Attribute = fn(&mut Event) -> &mut String;
        let attributes: [(&str, Attribute); 9] = [
            ("id", |e| &mut e.id),
            ("source", |e| &mut e.source),
            ("kind", |e| e.kind.to_mut()),
            ("subject", |e| &mut e.subject),
            ("target", |e| &mut e.target),
            ("action", |e| &mut e.action),
            ("key", |e| &mut e.key),
            ("signature", |e| e.signature.as_mut().unwrap()),
            ("proof", |e| e.proof.as_mut().unwrap()),
        ];
        for event in &events {
            for (name, of) in attributes {
                for text in changed(of(&mut event.clone())) {
                    // The unused bits of the last digit of base64 must be zero, or it is another text for the same bytes.
                    let mut forged = event.clone();
                    *of(&mut forged) = text;
                    refused(&trusted, &signer, &forged, name);
                }
            }
            for text in changed(event.data.get()) {
                let Ok(data) = serde_json::value::RawValue::from_string(text) else { continue };
                let forged = Event { data: data.into(), ..event.clone() };
                refused(&trusted, &signer, &forged, "data");
            }
            let shifted = Event { id: format!("{}/", event.id), source: event.source[1..].to_owned(), ..event.clone() };
            refused(&trusted, &signer, &shifted, "a byte moved from one attribute to the next");
        }
    }

    #[test]
    fn proofs_and_roots_do_not_pass_for_others() {
        let signer = Signer::ephemeral();
        let trusted = Trusted::new([signer.public_key()]).unwrap();
        let events = together(&signer, 7);
        let others = together(&signer, 8);
        events.iter().chain(&others).for_each(|event| trusted.check(event).unwrap());
        for event in &events {
            for other in events.iter().chain(&others).filter(|other| other.id != event.id) {
                let swapped = Event { proof: other.proof.clone(), ..event.clone() };
                refused(&trusted, &signer, &swapped, "the proof of another");
                let root = Event { signature: other.signature.clone(), proof: other.proof.clone(), ..event.clone() };
                refused(&trusted, &signer, &root, "proof and root of another");
            }
            let proof = BASE64.decode(event.proof.as_ref().unwrap()).unwrap();
            let with = |proof: &[u8]| Event { proof: Some(BASE64.encode(proof)), ..event.clone() };
            for steps in (0..proof.len()).step_by(33) {
                refused(&trusted, &signer, &with(&proof[..steps]), "a proof cut short");
                refused(&trusted, &signer, &with(&proof[steps + 33..]), "a proof without its beginning");
            }
            refused(&trusted, &signer, &with(&proof.repeat(8)), "a long proof");
            refused(&trusted, &signer, &Event { proof: None, ..event.clone() }, "no proof");
        }
        let mut alone = event();
        signer.sign(&mut alone).unwrap();
        alone.proof = Some(String::new());
        refused(&trusted, &signer, &alone, "a signature over the event itself with an empty proof");
    }

    #[test]
    fn an_inner_node_is_no_event() {
        // What an inner node is the hash of may not be signed bytes of an event, nor the other way round.
        let leaf = |bytes: &[u8]| tree::leaf(|to| to(bytes));
        let leaves: Vec<tree::Hash> = (0..4_u8).map(|n| leaf(&[n])).collect();
        let (root, proofs) = tree::grow(leaves.clone()).unwrap();
        let pair = [leaves[0], leaves[1]].concat();
        assert_ne!(tree::climb(leaf(&pair), &proofs[0][33..]), Some(root));
        assert_ne!(tree::climb(leaf(&[&[1], &*pair].concat()), &proofs[0][33..]), Some(root));
        for (leaf, proof) in leaves.iter().zip(&proofs) {
            assert_eq!(tree::climb(*leaf, proof), Some(root));
        }
    }

    #[test]
    fn a_foreign_root_is_refused_and_only_true_ones_are_remembered() {
        let (signer, stranger) = (Signer::ephemeral(), Signer::ephemeral());
        let trusted = Trusted::new([signer.public_key()]).unwrap();
        for mut event in together(&stranger, 3) {
            assert!(trusted.check(&event).is_err());
            event.signer = Some(signer.public_key());
            assert!(trusted.check(&event).is_err());
        }
        assert!(trusted.roots.lock().unwrap().is_empty());
        // As many roots: of one event more each time.
        for count in 2..SEEN_ROOTS + 5 {
            together(&signer, count).iter().take(2).for_each(|event| trusted.check(event).unwrap());
        }
        assert_eq!(trusted.roots.lock().unwrap().len(), SEEN_ROOTS);
        // The same root and signature under another trusted name is not the same.
        let both = Trusted::new([signer.public_key(), stranger.public_key()]).unwrap();
        for event in together(&signer, 2) {
            both.check(&event).unwrap();
            assert!(both.check(&Event { signer: Some(stranger.public_key()), ..event }).is_err());
        }
    }
}
