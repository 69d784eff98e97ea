//! Any bytes as the values of Hedwig's nodes: decoding never panics, and what it yields makes sense.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trimtab_targets::hedwig::znodes::{MAX_ID, MessageId, hub_info, hub_load, layout, ledger_ranges, subscription};

fuzz_target!(|data: &[u8]| {
    if let Ok(ranges) = ledger_ranges(data) {
        let mut before = 0;
        for (index, range) in ranges.iter().enumerate() {
            assert!(range.end.is_some() || index + 1 == ranges.len());
            if let Some(end) = &range.end {
                assert!(end.local() > before && end.local() <= MAX_ID);
                before = end.local();
                let again = MessageId::decode(end.raw().clone()).expect("it was decoded before");
                assert_eq!(again.local(), end.local());
            }
        }
    }
    if let Ok(subscription) = subscription(data) {
        assert!(subscription.pointer <= MAX_ID && !data.is_empty());
    }
    if let Ok(info) = hub_info(data) {
        let again = info.address.to_string().parse();
        assert_eq!(again, Ok(info.address));
    }
    let _ = (hub_load(data), layout(data));
});
