//! Any bytes as an event: reading never panics, and what has a body says the same when it is written and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trimtab_events::Event;

fuzz_target!(|data: &[u8]| {
    let Ok(event) = Event::from_bytes(data) else { return };
    let (body, written) = (event.body(), event.to_bytes());
    // Escapes are written in one way only, which may be longer than what came.
    let (Ok(body), Ok(bytes)) = (body, written) else { return };
    let again = Event::from_bytes(&bytes).expect("what was written is an event");
    assert_eq!(again.body(), Ok(body));
    assert_eq!(again.signed_bytes(), event.signed_bytes());
});
