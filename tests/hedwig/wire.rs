//! Recorded frames of real hubs and of Hedwig's own client: each decodes, and encodes to the same bytes; and our requests are those
//! that the hubs were seen to answer.

use bytes::{Bytes, BytesMut};
use prost::Message;
use trimtab_targets::hedwig::HubAddress;
use trimtab_targets::hedwig::proto::{PubSubRequest, PubSubResponse};
use trimtab_targets::hedwig::wire::{About, Event, Incoming, MAX_FRAME, Status, incoming, put_frame, take_frame};
use trimtab_targets::hedwig::znodes::MessageId;

#[derive(Debug)]
struct Line {
    exchange: &'static str,
    from_client: bool,
    /// None where the hub closed the connection.
    bytes: Option<Vec<u8>>,
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn recorded() -> Vec<Line> {
    let line = |line: &'static str| {
        let [exchange, direction, bytes] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        Line { exchange, from_client: direction == ">", bytes: (bytes != "-").then(|| hex(bytes)) }
    };
    include_str!("../data/hedwig/wire.txt").lines().filter(|line| !line.starts_with('#')).map(line).collect()
}

fn frames(bytes: &[u8]) -> Vec<Bytes> {
    let mut rest = BytesMut::from(bytes);
    let frames = std::iter::from_fn(|| take_frame(&mut rest, MAX_FRAME).unwrap()).collect();
    assert!(rest.is_empty(), "bytes after the last frame");
    frames
}

/// What the hub sent in an exchange.
fn answers(exchange: &str) -> Vec<Incoming> {
    let lines = recorded();
    let of = lines.iter().filter(|line| line.exchange == exchange && !line.from_client);
    of.filter_map(|line| line.bytes.as_deref()).flat_map(frames).map(|frame| incoming(&frame).unwrap()).collect()
}

/// The client's writes in an exchange.
fn writes(exchange: &str) -> Vec<Vec<u8>> {
    let of = recorded().into_iter().filter(|line| line.exchange == exchange && line.from_client);
    of.filter_map(|line| line.bytes).collect()
}

fn framed(requests: &[PubSubRequest]) -> Vec<u8> {
    let mut out = Vec::new();
    requests.iter().for_each(|request| put_frame(request, &mut out));
    out
}

#[test]
fn recorded_frames_decode_and_encode_to_the_same_bytes() {
    let mut seen = 0;
    for line in recorded() {
        let bytes = line.bytes.unwrap_or_default();
        for frame in frames(&bytes) {
            let again = if line.from_client {
                match PubSubRequest::decode(frame.clone()) {
                    Ok(request) => request.encode_to_vec(),
                    Err(_) => {
                        assert_eq!(line.exchange, "not-protobuf");
                        continue;
                    }
                }
            } else {
                PubSubResponse::decode(frame.clone()).unwrap().encode_to_vec()
            };
            assert_eq!(again, frame, "{}", line.exchange);
            seen += 1;
        }
    }
    assert!(seen > 60, "{seen}");
}

#[test]
fn our_requests_are_the_recorded_ones() {
    let about = |txn| About { txn, topic: "wt", subscriber: "idle" };
    let first: HubAddress = "127.0.0.1:17020:17040".parse().unwrap();
    let redirect = writes("redirect");
    assert_eq!(redirect[0], framed(&[about(1).attach(&[])]));
    assert_eq!(redirect[1], framed(&[about(2).attach(&[first])]));
    assert_eq!(redirect[2], framed(&[about(3).close_subscription()]));
    let to = MessageId::decode(Bytes::from_static(&[0x08, 0x3c])).unwrap();
    let both = [about(12).consume(&to), about(13).close_subscription()];
    assert_eq!(writes("attach-consume-close")[1], framed(&both));
}

#[test]
fn an_attach_names_its_mode_and_asks_for_nothing_else() {
    let request = About { txn: 1, topic: "t", subscriber: "s" }.attach(&[]).subscribe.unwrap();
    assert_eq!(request.create_or_attach, Some(1));
    assert_eq!((request.force_attach, request.preferences, request.message_bound), (None, None, None));
}

#[test]
fn recorded_answers_are_understood() {
    let answer = |incoming: &Incoming| match incoming {
        Incoming::Answer { txn, status, said, .. } => (*txn, *status, said.clone()),
        other => panic!("{other:?}"),
    };
    let redirect = answers("redirect");
    assert_eq!(answer(&redirect[0]), (1, Status::NOT_RESPONSIBLE_FOR_TOPIC, "127.0.0.1:17021:17041".to_owned()));
    assert_eq!(answer(&redirect[1]), (2, Status::SUCCESS, String::new()));
    assert_eq!(redirect[2], Incoming::Delivery(1));
    let (_, busy, said) = answer(&answers("refused-online")[0]);
    assert_eq!(busy, Status::TOPIC_BUSY);
    assert!(said.contains("already being served"), "{said}");
    assert_eq!(answer(&answers("attach-unknown")[0]).1, Status::CLIENT_NOT_SUBSCRIBED);
    assert_eq!(answer(&answers("wedged-topic")[0]), (5, Status::NOT_RESPONSIBLE_FOR_TOPIC, String::new()));
    let moved = answers("topic-moved");
    assert!(moved.contains(&Incoming::Event(Event::TopicMoved)));
    let forced = answers("forced-away");
    assert!(forced.contains(&Incoming::Event(Event::ForcedClosed)));
    let Incoming::Answer { preferences: Some(preferences), .. } = &answers("attach-with-preferences")[0] else {
        panic!("no preferences")
    };
    assert_eq!((preferences.message_bound, preferences.message_window_size), (Some(50), Some(7)));
    let Incoming::Answer { published, .. } = &answers("publish")[0] else { panic!("no answer") };
    assert_eq!(*published, Some(71));
}
