//! A Pulsar client that does what a test wants, and no more: a producer that knows which entry each message became, and consumers of
//! every kind, also ones that do not answer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message;
use trimtab_events::Position;
use trimtab_targets::pulsar::wire::{
    AckType, CommandAck, CommandCloseConsumer, CommandConnect, CommandError, CommandSubscribe, CommandSuccess,
    CommandType, MessageIdData, SubType,
};

#[derive(Clone, PartialEq, Message)]
struct Producer {
    #[prost(string, required, tag = "1")]
    topic: String,
    #[prost(uint64, required, tag = "2")]
    producer_id: u64,
    #[prost(uint64, required, tag = "3")]
    request_id: u64,
}

#[derive(Clone, PartialEq, Message)]
struct Send {
    #[prost(uint64, required, tag = "1")]
    producer_id: u64,
    #[prost(uint64, required, tag = "2")]
    sequence_id: u64,
    #[prost(int32, optional, tag = "3")]
    num_messages: Option<i32>,
    #[prost(bool, optional, tag = "7")]
    is_chunk: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
struct Receipt {
    #[prost(message, optional, tag = "3")]
    message_id: Option<MessageIdData>,
}

#[derive(Clone, PartialEq, Message)]
struct Delivered {
    #[prost(message, optional, tag = "2")]
    message_id: Option<MessageIdData>,
}

#[derive(Clone, PartialEq, Message)]
struct Flow {
    #[prost(uint64, required, tag = "1")]
    consumer_id: u64,
    #[prost(uint32, required, tag = "2")]
    permits: u32,
}

/// One command, with the fields that the crate under test leaves out.
#[derive(Clone, PartialEq, Message)]
struct Command {
    #[prost(int32, required, tag = "1")]
    kind: i32,
    #[prost(message, optional, tag = "2")]
    connect: Option<CommandConnect>,
    #[prost(message, optional, tag = "4")]
    subscribe: Option<CommandSubscribe>,
    #[prost(message, optional, tag = "5")]
    producer: Option<Producer>,
    #[prost(message, optional, tag = "6")]
    send: Option<Send>,
    #[prost(message, optional, tag = "7")]
    receipt: Option<Receipt>,
    #[prost(message, optional, tag = "9")]
    message: Option<Delivered>,
    #[prost(message, optional, tag = "10")]
    ack: Option<CommandAck>,
    #[prost(message, optional, tag = "11")]
    flow: Option<Flow>,
    #[prost(message, optional, tag = "13")]
    success: Option<CommandSuccess>,
    #[prost(message, optional, tag = "14")]
    error: Option<CommandError>,
    #[prost(message, optional, tag = "16")]
    close_consumer: Option<CommandCloseConsumer>,
}

const PRODUCER: i32 = 5;
const SEND: i32 = 6;
const FLOW: i32 = 11;

/// What stands before a message.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(string, required, tag = "1")]
    producer_name: String,
    #[prost(uint64, required, tag = "2")]
    sequence_id: u64,
    #[prost(uint64, required, tag = "3")]
    publish_time: u64,
    #[prost(string, optional, tag = "26")]
    pub(crate) uuid: Option<String>,
    #[prost(int32, optional, tag = "27")]
    pub(crate) chunks: Option<i32>,
    #[prost(int32, optional, tag = "28")]
    total_size: Option<i32>,
    #[prost(int32, optional, tag = "29")]
    pub(crate) chunk_id: Option<i32>,
}

/// A connection with one producer or one consumer.
pub(crate) struct Client {
    stream: Arc<Mutex<TcpStream>>,
    heard: Receiver<Command>,
    requests: AtomicU64,
    /// Cleared, it does not answer probes, as a paused process.
    answers: Arc<AtomicBool>,
    sent: u64,
}

impl Client {
    /// Connects to `pulsar://host:port`.
    pub(crate) fn connect(service: &str, token: Option<&str>) -> Client {
        let stream = TcpStream::connect(service.strip_prefix("pulsar://").unwrap()).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut reader = stream.try_clone().unwrap();
        let stream = Arc::new(Mutex::new(stream));
        let answers = Arc::new(AtomicBool::new(true));
        let (sender, heard) = channel();
        let (writer, answering) = (stream.clone(), answers.clone());
        std::thread::spawn(move || {
            while let Some(command) = read(&mut reader) {
                match CommandType::try_from(command.kind) {
                    Ok(CommandType::Ping) if answering.load(Ordering::SeqCst) => {
                        let pong = Command { kind: CommandType::Pong as i32, ..Command::default() };
                        // Its body is empty, but must be there.
                        write(&writer, &pong, &[0x9a, 0x01, 0x00], &[]);
                    }
                    Ok(CommandType::Ping) => {}
                    _ => {
                        if sender.send(command).is_err() {
                            break;
                        }
                    }
                }
            }
        });
        let mut client = Client { stream, heard, requests: AtomicU64::new(0), answers, sent: 0 };
        let connect = CommandConnect {
            client_version: "test".to_owned(),
            auth_data: token.map(|token| token.as_bytes().to_vec()),
            protocol_version: Some(19),
            auth_method_name: token.map(|_| "token".to_owned()),
            proxy_to_broker_url: None,
        };
        client.tell(Command { kind: CommandType::Connect as i32, connect: Some(connect), ..Command::default() }, &[]);
        let greeting = client.hear(10).expect("a greeting");
        assert_eq!(greeting.kind, CommandType::Connected as i32, "{greeting:?}");
        client
    }

    /// From now on, probes are not answered.
    pub(crate) fn freeze(&self) {
        self.answers.store(false, Ordering::SeqCst);
    }

    /// Whether the broker has closed the connection.
    pub(crate) fn is_closed(&self) -> bool {
        loop {
            match self.heard.try_recv() {
                Ok(_) => {}
                Err(std::sync::mpsc::TryRecvError::Empty) => return false,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return true,
            }
        }
    }

    fn tell(&mut self, command: Command, payload: &[u8]) {
        write(&self.stream, &command, &[], payload);
    }

    fn request(&self) -> u64 {
        self.requests.fetch_add(1, Ordering::SeqCst) + 1
    }

    fn hear(&mut self, seconds: u64) -> Option<Command> {
        self.heard.recv_timeout(Duration::from_secs(seconds)).ok()
    }

    /// Waits for the answer to a request.
    fn answer(&mut self, request: u64) -> Result<(), String> {
        loop {
            let command = self.hear(30).ok_or("no answer")?;
            if command.success.as_ref().is_some_and(|success| success.request_id == request) {
                return Ok(());
            }
            if let Some(error) = command.error.filter(|error| error.request_id == request) {
                return Err(error.message);
            }
        }
    }

    /// A producer of a topic.
    pub(crate) fn producer(service: &str, token: Option<&str>, topic: &str) -> Client {
        let mut client = Client::connect(service, token);
        let producer = Producer { topic: topic.to_owned(), producer_id: 1, request_id: client.request() };
        client.tell(Command { kind: PRODUCER, producer: Some(producer), ..Command::default() }, &[]);
        let made = client.hear(60).expect("a producer");
        assert!(made.error.is_none(), "{made:?}");
        client
    }

    /// Sends one message, numbered in its body; its entry.
    pub(crate) fn send(&mut self) -> Position {
        self.send_as(Metadata::default())
    }

    /// Sends one message in chunks, with `between` called after each but the last; its entries.
    pub(crate) fn send_chunks(
        &mut self,
        uuid: &str,
        chunks: i32,
        mut between: impl FnMut(&mut Client),
    ) -> Vec<Position> {
        let chunk = |id| Metadata {
            uuid: Some(uuid.to_owned()),
            chunks: Some(chunks),
            total_size: Some(chunks * 10),
            chunk_id: Some(id),
            ..Metadata::default()
        };
        let mut entries = Vec::new();
        for id in 0..chunks {
            entries.push(self.send_as(chunk(id)));
            if id + 1 < chunks {
                between(self);
            }
        }
        entries
    }

    fn send_as(&mut self, metadata: Metadata) -> Position {
        let sequence_id = self.sent;
        self.sent += 1;
        let publish_time = trimtab_tests::now_ms().cast_unsigned();
        let is_chunk = metadata.chunk_id.is_some().then_some(true);
        let metadata = Metadata { producer_name: "test".to_owned(), sequence_id, publish_time, ..metadata };
        let mut payload = u32::try_from(metadata.encoded_len()).unwrap().to_be_bytes().to_vec();
        metadata.encode(&mut payload).unwrap();
        payload.extend_from_slice(format!("{sequence_id:<10}").as_bytes());
        let send = Send { producer_id: 1, sequence_id, num_messages: None, is_chunk };
        self.tell(Command { kind: SEND, send: Some(send), ..Command::default() }, &payload);
        loop {
            let heard = self.hear(30).expect("a receipt");
            assert!(heard.error.is_none(), "{heard:?}");
            if let Some(id) = heard.receipt.and_then(|receipt| receipt.message_id) {
                return place(&id);
            }
        }
    }

    /// A consumer of an existing subscription.
    pub(crate) fn subscribe(
        service: &str,
        token: Option<&str>,
        topic: &str,
        subscription: &str,
        kind: SubType,
    ) -> Result<Client, String> {
        let mut client = Client::connect(service, token);
        client.try_subscribe(topic, subscription, kind)?;
        Ok(client)
    }

    /// The same, on this connection.
    pub(crate) fn try_subscribe(&mut self, topic: &str, subscription: &str, kind: SubType) -> Result<(), String> {
        let request_id = self.request();
        let subscribe = CommandSubscribe {
            topic: topic.to_owned(),
            subscription: subscription.to_owned(),
            sub_type: kind as i32,
            // A number that failed once is not taken again.
            consumer_id: request_id,
            request_id,
            consumer_name: Some("a test's".to_owned()),
            initial_position: Some(1),
            ..CommandSubscribe::default()
        };
        self.tell(
            Command { kind: CommandType::Subscribe as i32, subscribe: Some(subscribe), ..Command::default() },
            &[],
        );
        self.answer(request_id)
    }

    /// Everything that is delivered until nothing comes for two seconds, on a subscription that this connection's first request made.
    pub(crate) fn receive(&mut self) -> Vec<Position> {
        let flow = Flow { consumer_id: 1, permits: 1000 };
        self.tell(Command { kind: FLOW, flow: Some(flow), ..Command::default() }, &[]);
        let mut entries = Vec::new();
        while let Some(command) = self.hear(2) {
            entries.extend(command.message.and_then(|message| message.message_id).as_ref().map(place));
        }
        entries
    }

    /// Acknowledges, and gives the broker time to heed it.
    pub(crate) fn acknowledge(&mut self, how: AckType, entries: &[Position]) {
        let message_id = entries.iter().map(|p| MessageIdData {
            ledger_id: p.ledger.cast_unsigned(),
            entry_id: p.entry.cast_unsigned(),
            ..MessageIdData::default()
        });
        let ack = CommandAck {
            consumer_id: 1,
            ack_type: how as i32,
            message_id: message_id.collect(),
            request_id: Some(self.request()),
        };
        self.tell(Command { kind: CommandType::Ack as i32, ack: Some(ack), ..Command::default() }, &[]);
        while self.hear(10).expect("an answer").kind != CommandType::AckResponse as i32 {}
    }

    /// Disconnects in good order.
    pub(crate) fn close(mut self) {
        let request_id = self.request();
        let close = CommandCloseConsumer { consumer_id: 1, request_id };
        self.tell(
            Command { kind: CommandType::CloseConsumer as i32, close_consumer: Some(close), ..Command::default() },
            &[],
        );
        self.answer(request_id).unwrap();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The reading thread holds the socket, too.
        let _ = self.stream.lock().unwrap().shutdown(std::net::Shutdown::Both);
    }
}

fn place(id: &MessageIdData) -> Position {
    Position { ledger: id.ledger_id.cast_signed(), entry: id.entry_id.cast_signed() }
}

fn write(stream: &Mutex<TcpStream>, command: &Command, more: &[u8], payload: &[u8]) {
    let mut encoded = command.encode_to_vec();
    encoded.extend_from_slice(more);
    let length = |n: usize| u32::try_from(n).unwrap().to_be_bytes();
    let mut frame = length(4 + encoded.len() + payload.len()).to_vec();
    frame.extend_from_slice(&length(encoded.len()));
    frame.extend_from_slice(&encoded);
    frame.extend_from_slice(payload);
    // The broker may have closed it; whoever waits for an answer notices.
    let _ = stream.lock().unwrap().write_all(&frame);
}

fn read(stream: &mut TcpStream) -> Option<Command> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).ok()?;
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).ok()?;
    let (command, rest) = frame.split_first_chunk::<4>()?;
    let command = rest.get(..u32::from_be_bytes(*command) as usize)?;
    Command::decode(command).ok()
}
