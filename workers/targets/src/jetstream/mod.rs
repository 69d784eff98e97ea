//! NATS JetStream: streams and their consumers, of one account or of several; reads them by pages of the servers' own lists, and acts by the
//! same interface (`$JS.API.…`).
//!
//! Forms and behaviour: nats-server 2.15.3. What the servers guard, and what not: `act.rs`.

mod account;
mod act;
mod hands;
mod inventory;
mod names;
mod scope;
mod undo;
mod wire;

pub use account::{Account, Dial, Refusal, Wire};
pub use act::{JetStreamAct, Moment, Times, Watch};
pub use inventory::{AgesOut, JetStreamInventory, stream_of_answers};
pub use names::StreamName;
pub use scope::check_scope;
