//! The client against a scripted hub: what a real one would hardly ever do.

use std::sync::{Arc, Mutex};

use prost::Message;
use tokio::net::TcpListener;

use super::*;
use crate::hedwig::proto::{
    MessageSeqId, PubSubMessage, PubSubRequest, PubSubResponse, ResponseBody, SubscriptionEvent,
};
use crate::hedwig::wire::op;

enum Do {
    Send(Vec<u8>),
    Wait(Duration),
    Close,
}

/// What arrived: the requests of each read.
type Reads = Arc<Mutex<Vec<Vec<PubSubRequest>>>>;

struct Scripted {
    address: HubAddress,
    reads: Reads,
}

impl Scripted {
    fn types(&self) -> Vec<i32> {
        self.reads.lock().unwrap().iter().flatten().map(|request| request.r#type.unwrap()).collect()
    }
}

/// A hub that does what the script says to each request.
async fn scripted(script: impl Fn(&PubSubRequest) -> Vec<Do> + Send + Sync + 'static) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let reads = Reads::default();
    let (script, log) = (Arc::new(script), reads.clone());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (script, log) = (script.clone(), log.clone());
            tokio::spawn(async move {
                let mut received = BytesMut::new();
                while stream.read_buf(&mut received).await.is_ok_and(|n| n > 0) {
                    let mut requests = Vec::new();
                    while let Some(frame) = wire::take_frame(&mut received, MAX_FRAME).unwrap() {
                        requests.push(PubSubRequest::decode(frame).unwrap());
                    }
                    log.lock().unwrap().push(requests.clone());
                    for what in requests.iter().flat_map(|request| script(request)) {
                        match what {
                            Do::Send(bytes) => stream.write_all(&bytes).await.unwrap(),
                            Do::Wait(time) => tokio::time::sleep(time).await,
                            Do::Close => return,
                        }
                    }
                }
            });
        }
    });
    Scripted { address: HubAddress { host: "127.0.0.1".to_owned(), port, tls_port: None }, reads }
}

fn framed(response: PubSubResponse) -> Do {
    let body = PubSubResponse { protocol_version: response.protocol_version.or(Some(1)), ..response }.encode_to_vec();
    let mut out = u32::try_from(body.len()).unwrap().to_be_bytes().to_vec();
    out.extend_from_slice(&body);
    Do::Send(out)
}

fn answer(request: &PubSubRequest, status: i32, said: &str) -> Do {
    framed(PubSubResponse {
        status_code: Some(status),
        txn_id: request.txn_id,
        status_msg: (!said.is_empty() || status == 501).then(|| said.to_owned()),
        ..PubSubResponse::default()
    })
}

fn unasked() -> PubSubResponse {
    PubSubResponse { status_code: Some(0), txn_id: Some(0), ..PubSubResponse::default() }
}

fn delivery(id: u64) -> Do {
    let msg_id = Some(MessageSeqId { local: Some(id), remote: vec![] });
    framed(PubSubResponse { message: Some(PubSubMessage { msg_id, ..PubSubMessage::default() }), ..unasked() })
}

fn event(number: i32) -> Do {
    let event = Some(SubscriptionEvent { event: Some(number) });
    framed(PubSubResponse { response_body: Some(ResponseBody { event, ..ResponseBody::default() }), ..unasked() })
}

fn hubs() -> Hubs {
    let options = HubOptions {
        attach_timeout: Duration::from_millis(500),
        hold: Duration::from_millis(500),
        ..HubOptions::default()
    };
    Hubs::new(options).unwrap()
}

fn to(id: u8) -> MessageId {
    MessageId::decode(vec![0x08, id].into()).unwrap()
}

async fn refused(hub: &Scripted) -> AttachError {
    hubs().attach(&hub.address, "t", "s").await.unwrap_err()
}

/// Attaches, and waits for the first message.
async fn delivered(hub: &Scripted) -> Attached {
    let attached = hubs().attach(&hub.address, "t", "s").await.unwrap();
    match attached.first(Duration::from_millis(200)).await {
        First::Delivered(attached, 1) => attached,
        other => panic!("{other:?}"),
    }
}

/// A hub that attaches, delivers a message, and does `then` when it is asked to consume or close.
async fn good_until(then: impl Fn(&PubSubRequest) -> Vec<Do> + Send + Sync + 'static) -> Scripted {
    scripted(move |request| match request.r#type {
        Some(op::SUBSCRIBE) => vec![answer(request, 0, ""), delivery(1), delivery(2)],
        _ => then(request),
    })
    .await
}

#[tokio::test]
async fn consume_and_close_leave_in_one_write() {
    let hub = good_until(|request| match request.r#type {
        Some(op::CLOSE_SUBSCRIPTION) => vec![delivery(3), answer(request, 0, ""), delivery(4)],
        _ => vec![],
    })
    .await;
    let attached = delivered(&hub).await;
    assert_eq!(attached.consume_and_close(&to(60)).await, Ending::Closed);
    let reads = hub.reads.lock().unwrap().clone();
    assert_eq!(reads.len(), 2, "{reads:?}");
    assert_eq!(reads[1].iter().map(|request| request.r#type.unwrap()).collect::<Vec<_>>(), [2, 6]);
}

#[tokio::test]
async fn refusals_send_nothing_more() {
    for (status, said, expected) in [
        (406, "busy", "online"),
        (404, "who?", "no such subscriber"),
        (501, "", "restarted"),
        (501, "nonsense", "sends us elsewhere"),
        (502, "down", "SERVICE_DOWN"),
        (504, "", "INVALID_MESSAGE_FILTER"),
        (403, "", "CLIENT_ALREADY_SUBSCRIBED"),
        (999, "", "not known"),
    ] {
        let hub = scripted(move |request| vec![answer(request, status, said)]).await;
        let error = refused(&hub).await;
        assert!(error.to_string().contains(expected), "{error}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(hub.types(), [op::SUBSCRIBE], "{error}");
    }
}

#[tokio::test]
async fn redirects_are_followed_and_say_so() {
    let owner = good_until(|_| vec![]).await;
    let named = format!("{}:0", owner.address);
    let other = scripted(move |request| vec![answer(request, 501, &named)]).await;
    let attached = hubs().attach(&other.address, "t", "s").await.unwrap();
    assert_eq!(attached.hub().plain(), owner.address.plain());
    let (first, second) = (other.reads.lock().unwrap()[0][0].clone(), owner.reads.lock().unwrap()[0][0].clone());
    assert_eq!((first.should_claim, first.tried_servers.len()), (None, 0));
    assert_eq!((second.should_claim, &second.tried_servers[0][..]), (Some(true), other.address.plain().as_bytes()));
    assert_eq!(first.subscribe, second.subscribe);
    // Unless it was to be the owner.
    let error = hubs().attach_at_owner(&other.address, "t", "s").await.unwrap_err();
    assert!(matches!(&error, AttachError::Moved { to, .. } if *to == format!("{}:0", owner.address)), "{error}");
    assert_eq!(owner.reads.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn hubs_that_name_each_other_are_given_up() {
    // itself
    let own = Arc::new(Mutex::new(String::new()));
    let named = own.clone();
    let hub = scripted(move |request| vec![answer(request, 501, &named.lock().unwrap())]).await;
    *own.lock().unwrap() = hub.address.to_string();
    assert!(matches!(refused(&hub).await, AttachError::Redirected { tried } if tried.len() == 2));
    // each other
    let there = hub.address.to_string();
    let second = scripted(move |request| vec![answer(request, 501, &there)]).await;
    *own.lock().unwrap() = second.address.to_string();
    assert!(matches!(refused(&hub).await, AttachError::Redirected { tried } if tried.len() == 3));
    // always another one
    let mut next = "127.0.0.1:1".to_owned();
    let mut chain = Vec::new();
    for _ in 0..=MAX_REDIRECTS {
        let named = next.clone();
        chain.push(scripted(move |request| vec![answer(request, 501, &named)]).await);
        next = chain.last().unwrap().address.to_string();
    }
    let error = refused(chain.last().unwrap()).await;
    assert!(matches!(&error, AttachError::Redirected { tried } if tried.len() == MAX_REDIRECTS + 2), "{error}");
}

#[tokio::test]
async fn garbage_is_called_garbage() {
    for (bytes, expected) in [
        (vec![0x7f, 0xff, 0xff, 0xff], "2147483647 bytes, more than"),
        (vec![0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28], "TLS"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "HTTP"),
        (vec![0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff], "no response of a hub"),
        (vec![0, 0, 0, 0], "no version"),
        (vec![0, 0, 0, 6, 0x08, 0x02, 0x10, 0x00, 0x18, 0x01], "version 2 of the protocol"),
        // an answer to something else, a message before the answer
        (vec![0, 0, 0, 6, 0x08, 0x01, 0x10, 0x00, 0x18, 0x09], "not the answer"),
        (vec![0, 0, 0, 6, 0x08, 0x01, 0x10, 0x00, 0x18, 0x00], "answers no request"),
        // a message without an id
        (vec![0, 0, 0, 8, 0x08, 0x01, 0x10, 0x00, 0x18, 0x00, 0x2a, 0x00], "no id"),
    ] {
        let hub = scripted(move |_| vec![Do::Send(bytes.clone())]).await;
        let error = refused(&hub).await;
        assert!(matches!(&error, AttachError::Garbled { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[tokio::test]
async fn hubs_that_do_not_answer_are_given_up() {
    let closes = scripted(|_| vec![Do::Close]).await;
    let halfway = scripted(|_| vec![Do::Send(vec![0, 0, 0, 6, 0x08]), Do::Close]).await;
    let silent = scripted(|_| vec![Do::Wait(Duration::from_secs(5))]).await;
    let nobody = HubAddress { host: "127.0.0.1".to_owned(), port: 1, tls_port: None };
    for hub in [&closes.address, &halfway.address, &silent.address, &nobody] {
        let error = hubs().attach(hub, "t", "s").await.unwrap_err();
        assert!(matches!(&error, AttachError::Unreachable { .. }), "{error}");
        assert_eq!(error.class(), Class::Transient);
    }
}

#[tokio::test]
async fn a_slow_hub_is_waited_for() {
    let hub = scripted(|request| match request.r#type {
        Some(op::SUBSCRIBE) => {
            let Do::Send(bytes) = answer(request, 0, "") else { unreachable!() };
            let piece = |part: &[u8]| [Do::Send(part.to_vec()), Do::Wait(Duration::from_millis(5))];
            bytes.chunks(1).flat_map(piece).chain([delivery(1)]).collect()
        }
        _ => vec![],
    })
    .await;
    delivered(&hub).await.detach().await;
}

#[tokio::test]
async fn silence_is_not_a_loss() {
    let hub = scripted(|request| vec![answer(request, 0, "")]).await;
    let attached = hubs().attach(&hub.address, "t", "s").await.unwrap();
    assert!(matches!(attached.first(Duration::from_millis(20)).await, First::Silent(_)));
}

#[tokio::test]
async fn nothing_is_sent_once_the_attachment_is_over() {
    // before the first message
    for (then, expected) in [(1, "gave the topic up"), (2, "by force"), (9, "event 9")] {
        let hub = scripted(move |request| vec![answer(request, 0, ""), event(then)]).await;
        let attached = hubs().attach(&hub.address, "t", "s").await.unwrap();
        match attached.first(Duration::from_millis(200)).await {
            First::Lost(why) => assert!(why.contains(expected), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    // after it
    for over in [|| vec![event(1)], || vec![event(2)], || vec![Do::Close], || vec![Do::Send(vec![0xff; 8])]] {
        let hub = scripted(move |request| {
            let mut all = vec![answer(request, 0, ""), delivery(1)];
            all.extend((2..40).map(delivery));
            all.extend(over());
            all
        })
        .await;
        let attached = delivered(&hub).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(matches!(attached.consume_and_close(&to(60)).await, Ending::Lost(_)));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(hub.types(), [op::SUBSCRIBE]);
    }
    // when it was held for too long
    let hub = good_until(|_| vec![]).await;
    let attached = delivered(&hub).await;
    tokio::time::sleep(Duration::from_millis(520)).await;
    assert!(matches!(attached.consume_and_close(&to(60)).await, Ending::Lost(_)));
    assert_eq!(hub.types(), [op::SUBSCRIBE]);
}

#[tokio::test]
async fn every_other_end_is_told_apart() {
    let consume = |request: &PubSubRequest| request.r#type == Some(op::CONSUME);
    let moved = good_until(move |r| if consume(r) { vec![event(1)] } else { vec![answer(r, 0, "")] }).await;
    let elsewhere = good_until(move |r| vec![answer(r, 501, "127.0.0.1:9:9")]).await;
    let refuses = good_until(move |r| if consume(r) { vec![] } else { vec![answer(r, 502, "down")] }).await;
    let dies = good_until(move |_| vec![Do::Close]).await;
    let silent = good_until(move |_| vec![]).await;
    let garbles = good_until(move |_| vec![Do::Send(vec![0xff; 8])]).await;
    for (hub, uncertain) in
        [(moved, true), (elsewhere, false), (refuses, true), (dies, true), (silent, true), (garbles, true)]
    {
        let ending = delivered(&hub).await.consume_and_close(&to(60)).await;
        match (&ending, uncertain) {
            (Ending::Uncertain(_), true) | (Ending::Refused(_), false) => {}
            _ => panic!("{ending:?}"),
        }
        assert_eq!(hub.types(), [op::SUBSCRIBE, op::CONSUME, op::CLOSE_SUBSCRIPTION]);
    }
}

#[tokio::test]
async fn a_hub_that_delivers_without_end_is_read_to_the_close() {
    let hub = scripted(|request| match request.r#type {
        Some(op::SUBSCRIBE) => [answer(request, 0, "")].into_iter().chain((1..20_000).map(delivery)).collect(),
        Some(op::CLOSE_SUBSCRIPTION) => vec![answer(request, 0, "")],
        _ => vec![],
    })
    .await;
    assert_eq!(delivered(&hub).await.consume_and_close(&to(60)).await, Ending::Closed);
}

#[tokio::test]
async fn announced_addresses_are_mapped() {
    let hub = good_until(|_| vec![]).await;
    for (announced, map) in [
        ("10.9.8.7:4080:9876", vec![("10.9.8.7:4080".to_owned(), hub.address.plain())]),
        (&*format!("10.9.8.7:{}", hub.address.port), vec![("10.9.8.7".to_owned(), "127.0.0.1".to_owned())]),
    ] {
        let options = HubOptions { addresses: map.into_iter().collect(), ..hubs().options().clone() };
        let attached = Hubs::new(options).unwrap().attach(&announced.parse().unwrap(), "t", "s").await.unwrap();
        assert_eq!(attached.hub().to_string(), announced);
    }
}
