//! Frames as a broker of Pulsar 4.2.4 sent and took them.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use trimtab_events::Position;

use super::connection::Connection;
use super::*;

pub(super) const HELLO: &str = "0000001900000015080212110a0d7472696d74616220302e312e302013";
pub(super) const CONNECTED: &str =
    "0000002d0000002908031a250a1250756c73617220536572766572342e322e341013188080c00222082001280130013801";
const LOOKUP: &str = "00000024000000200817ba011b0a1570657273697374656e743a2f2f61636d652f6e2f7410011800";
const OWNER: &str = "0000002b000000270818c201220a1870756c7361723a2f2f3132372e302e302e313a33303738341801200128014000";
const NO_NAMESPACE: &str = "00000024000000200818c2011b18022005300b3a134e616d657370616365206e6f7420666f756e64";
const SUCCESS_1: &str = "0000000a00000006080d6a020801";
const BUSY: &str = "0000003500000031080e722d080a10051a274578636c757369766520636f6e73756d657220697320616c726561647920636f6e6e6563746564";
const OTHER_TYPE: &str = "0000009500000091080e728c01080b10051a8501537562736372697074696f6e206973206f6620646966666572656e7420747970652e2041637469766520737562736372697074696f6e2074797065206f6620274578636c75736976652720697320646966666572656e74207468616e2074686520636f6e6e656374696e6720636f6e73756d6572277320747970652027536861726564272e";
const NO_TOPIC: &str = "0000003b00000037080e72330814100b1a2d546f7069632070657273697374656e743a2f2f61636d652f6e2f6e6f6e6520646f6573206e6f74206578697374";
const RESERVED: &str = "0000004400000040080e723c081410101a36537562736372697074696f6e207769746820726573657276656420737562736372697074696f6e206e616d6520617474656d70746564";
const PING: &str = "00000009000000050812920100";
const PONG: &str = "000000090000000508139a0100";
const GET_LAST: &str = "0000000d00000009081dea010408011002";
const LAST_2: &str = "0000003600000032081ef2012d0a1a0808100418ffffffffffffffffff0120ffffffffffffffffff0110021a0d080210ffffffffffffffffff01";
const LAST_4: &str = "0000003600000032081ef2012d0a1a0808100418ffffffffffffffffff0120ffffffffffffffffff0110041a0d080210ffffffffffffffffff01";
const ACK: &str = "0000001400000010080a520c080110011a04080010034003";
const ACK_RESPONSE_3: &str = "0000000d000000090826b2020408013003";
const SEEK: &str = "000000130000000f081ce2010a082210341a0408001000";
const UNSUBSCRIBE: &str = "0000000c00000008080c6204081e1028";
const CLOSE: &str = "0000000d00000009081082010408011009";
/// From the broker, when the topic was unloaded.
const CLOSED: &str = "0000001600000012081082010d082110ffffffffffffffffff01";

pub(super) fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|b| !b.is_ascii_whitespace()).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn command(hex: &str) -> BaseCommand {
    let mut received = BytesMut::from(&bytes(hex)[..]);
    let frame = Frame::take(&mut received).unwrap().unwrap();
    assert!(received.is_empty() && frame.rest.is_empty(), "{hex}");
    frame.command
}

#[test]
fn what_was_recorded_is_the_same_bytes_again() {
    let all = [
        HELLO,
        CONNECTED,
        LOOKUP,
        OWNER,
        NO_NAMESPACE,
        SUCCESS_1,
        BUSY,
        OTHER_TYPE,
        NO_TOPIC,
        RESERVED,
        PING,
        PONG,
        GET_LAST,
        LAST_2,
        LAST_4,
        ACK,
        ACK_RESPONSE_3,
        SEEK,
        UNSUBSCRIBE,
        CLOSE,
        CLOSED,
    ];
    for recorded in all {
        let decoded = command(recorded);
        assert!(decoded.command_type().is_some(), "{recorded}");
        let mut encoded = BytesMut::new();
        encode(&decoded, &mut encoded).unwrap();
        assert_eq!(encoded, bytes(recorded), "{decoded:?}");
    }
    let last = command(LAST_4).last_message_id.unwrap();
    assert_eq!((last.last_message_id.ledger_id, last.last_message_id.entry_id), (8, 4));
    assert_eq!(last.consumer_mark_delete_position.unwrap().entry_id, u64::MAX);
    let refused = command(OTHER_TYPE).error.unwrap();
    assert_eq!(ServerError::try_from(refused.error), Ok(ServerError::ConsumerBusy));
}

/// The other end of a connection: what it has to say, when it is asked.
struct Broker {
    stream: DuplexStream,
    received: BytesMut,
}

impl Broker {
    async fn says(&mut self, hex: &str) {
        self.stream.write_all(&bytes(hex)).await.unwrap();
    }

    async fn hears(&mut self) -> Option<BaseCommand> {
        loop {
            if let Some(frame) = Frame::take(&mut self.received).unwrap() {
                return Some(frame.command);
            }
            if self.stream.read_buf(&mut self.received).await.unwrap() == 0 {
                return None;
            }
        }
    }

    /// The same, for the frame that was recorded.
    async fn hears_this(&mut self, hex: &str) {
        let heard = self.hears().await.unwrap();
        let mut encoded = BytesMut::new();
        encode(&heard, &mut encoded).unwrap();
        assert_eq!(encoded, bytes(hex), "{heard:?}");
    }
}

fn options() -> ConnectionOptions {
    let timeout = Duration::from_secs(5);
    ConnectionOptions { token: None, tls: None, connect_timeout: timeout, request_timeout: timeout }
}

/// A connection, and a broker that has greeted it.
async fn connected() -> (Connection, Broker) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let mut broker = Broker { stream: theirs, received: BytesMut::new() };
    let options = options();
    let greeting = async {
        broker.hears_this(HELLO).await;
        broker.says(CONNECTED).await;
    };
    let (connection, ()) = tokio::join!(Connection::greet(Box::new(ours), None, &options), greeting);
    (connection.unwrap(), broker)
}

const ATTACH: Attach<'_> =
    Attach { topic: "persistent://acme/n/t", subscription: "s", consumer: "trimtab:1", properties: &[] };

/// An attachment, and its broker.
async fn attached() -> (Attachment, Broker) {
    let (connection, mut broker) = connected().await;
    let taken = async {
        let heard = broker.hears().await.unwrap().subscribe.unwrap();
        // As it was recorded, in the words of the protocol: nothing is created that is not there, no message is asked for.
        assert_eq!((heard.topic.as_str(), heard.subscription.as_str()), ("persistent://acme/n/t", "s"));
        assert_eq!(heard.sub_type, SubType::Exclusive as i32);
        assert_eq!(
            (heard.durable, heard.force_topic_creation, heard.initial_position),
            (Some(true), Some(false), Some(0))
        );
        broker.says(SUCCESS_1).await;
    };
    let (attachment, ()) = tokio::join!(connection.attach(ATTACH), taken);
    (attachment.unwrap(), broker)
}

#[tokio::test]
async fn a_greeting_is_what_it_should_be() {
    let greet = |says: Vec<u8>| async move {
        let (ours, mut theirs) = tokio::io::duplex(1 << 16);
        let options = options();
        let answer = async {
            theirs.write_all(&says).await.unwrap();
            theirs.shutdown().await.unwrap();
        };
        tokio::join!(Connection::greet(Box::new(ours), None, &options), answer).0
    };
    assert_eq!(greet(bytes(CONNECTED)).await.unwrap().server(), "Pulsar Server4.2.4");
    // No frame at all, one that is far too long, one of another kind, a refusal, and half a frame.
    assert!(matches!(greet(Vec::new()).await, Err(WireError::Ended(_))));
    assert!(matches!(greet(b"HTTP/1.1 400 Bad Request\r\n".to_vec()).await, Err(WireError::Garbage(_))));
    assert!(matches!(greet(bytes(SUCCESS_1)).await, Err(WireError::Garbage(_))));
    assert!(matches!(greet(bytes(BUSY)).await, Err(WireError::Refused(_))));
    assert!(matches!(greet(bytes(&CONNECTED[..40])).await, Err(WireError::Ended(_))));
}

#[tokio::test]
async fn a_look_up_says_who_owns_a_topic() {
    let (mut connection, mut broker) = connected().await;
    let ask = connection.look_up("persistent://acme/n/t", false);
    let (owner, ()) = tokio::join!(ask, async {
        broker.hears_this(LOOKUP).await;
        broker.says(OWNER).await;
    });
    let owner = owner.unwrap();
    assert_eq!(owner.plain.as_deref(), Some("pulsar://127.0.0.1:30784"));
    assert!(owner.connect && !owner.through_proxy && owner.tls.is_none());
    // Numbers of requests go on; an answer to another request is not one to this.
    let ask = connection.look_up("persistent://acme/n/t", true);
    let (refused, ()) = tokio::join!(ask, async {
        assert_eq!(broker.hears().await.unwrap().lookup.unwrap().authoritative, Some(true));
        broker.says(OWNER).await;
        broker.says(&NO_NAMESPACE.replace("2005", "2002")).await;
    });
    let Err(WireError::Refused(refusal)) = refused else { panic!("{refused:?}") };
    assert_eq!(refusal.error(), Some(ServerError::TopicNotFound));
}

#[tokio::test]
async fn an_attachment_acknowledges_and_asks_in_the_recorded_bytes() {
    let (mut attachment, mut broker) = attached().await;
    let (last, ()) = tokio::join!(attachment.last_message(), async {
        broker.hears_this(GET_LAST).await;
        broker.says(LAST_2).await;
    });
    let last = last.unwrap();
    assert_eq!(last.last, Some(Position { ledger: 8, entry: 4 }));
    assert_eq!(last.mark_delete, Some(Position { ledger: 2, entry: -1 }));
    let (done, ()) = tokio::join!(attachment.acknowledge(Position { ledger: 0, entry: 3 }), async {
        broker.hears_this(ACK).await;
        broker.says(ACK_RESPONSE_3).await;
    });
    assert_eq!(done, Ok(()));
    let (detached, ()) = tokio::join!(attachment.detach(), async {
        assert_eq!(broker.hears().await.unwrap().close_consumer.unwrap().consumer_id, 1);
        broker.says(&SUCCESS_1.replace("0801", "0804")).await;
    });
    assert_eq!(detached, Ok(()));
    assert_eq!(broker.hears().await, None, "the connection is closed");
}

#[tokio::test]
async fn nothing_is_acknowledged_once_the_broker_has_disconnected_or_probed_us() {
    for (signal, what) in [(CLOSED, Disturbance::Disconnected), (PING, Disturbance::Probed)] {
        let (mut attachment, mut broker) = attached().await;
        assert_eq!(attachment.disturbed(), None);
        broker.says(signal).await;
        if what == Disturbance::Probed {
            broker.hears_this(PONG).await;
        }
        // Not even what is asked for at the same moment: the broker's word is read first.
        let done = attachment.acknowledge(Position { ledger: 0, entry: 3 }).await;
        assert_eq!(done, Err(WireError::Disturbed(what)));
        assert_eq!(attachment.seek(Position { ledger: 0, entry: 3 }).await, Err(WireError::Disturbed(what)));
        assert_eq!(attachment.unsubscribe().await, Err(WireError::Disturbed(what)));
        drop(attachment);
        assert_eq!(broker.hears().await, None, "nothing was sent");
    }
}

#[tokio::test]
async fn a_connection_that_breaks_says_so_to_whoever_waits() {
    let message = "0000000c00000008080912040801 1200".replace(' ', "");
    for (says, garbage) in [("ffffffff", true), (&message[..], true), ("", false)] {
        let (mut attachment, mut broker) = attached().await;
        let (lost, ()) = tokio::join!(attachment.acknowledge(Position { ledger: 0, entry: 3 }), async {
            broker.hears().await.unwrap();
            broker.says(says).await;
            broker.stream.shutdown().await.unwrap();
        });
        match lost {
            Err(WireError::Garbage(_)) if garbage => {}
            Err(WireError::Ended(_)) if !garbage => {}
            other => panic!("{other:?}"),
        }
        let after = attachment.acknowledge(Position { ledger: 0, entry: 3 }).await;
        assert_eq!(after, Err(WireError::Disturbed(Disturbance::Disconnected)));
    }
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_not_waited_for() {
    let (mut connection, _broker) = connected().await;
    connection.set_timeout(Duration::from_millis(20));
    let lost = connection.look_up("persistent://acme/n/t", false).await;
    assert_eq!(lost, Err(WireError::NoAnswer(Duration::from_millis(20))));
}

#[tokio::test]
async fn an_attach_is_refused_in_the_brokers_words() {
    for (says, error) in [(BUSY, ServerError::ConsumerBusy), (NO_TOPIC, ServerError::TopicNotFound)] {
        let (connection, mut broker) = connected().await;
        let (refused, ()) = tokio::join!(connection.attach(ATTACH), async {
            broker.hears().await.unwrap().subscribe.unwrap();
            broker.says(&says.replacen("080a10", "080110", 1).replacen("081410", "080110", 1)).await;
        });
        let Err(WireError::Refused(refusal)) = refused else { panic!("{refused:?}") };
        assert_eq!(refusal.error(), Some(error));
        assert_eq!(broker.hears().await, None, "the connection is closed");
    }
}
