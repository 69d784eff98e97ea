//! Benchmarks. Each prints ratios against a real peer that runs in the same minute on the same machine; what they mean and what
//! they should be is in docs/benchmarks.md. Nothing here is a test: no figure makes it fail.

mod attach;
mod consumers;
mod history;
mod limiter;
mod measure;
mod orphans;
mod pipeline;
mod scale;
mod scan;
mod snapshot;
mod snapshot_file;
mod starts;

use anyhow::{Result, bail};

const USAGE: &str = "usage: bench COMMAND [NAME=VALUE...]

  scan      topics=20000 rounds=5   a scan of a real ZooKeeper against plain reads, one at a time
  limiter   seconds=60 limit=200    operations counted at ZooKeeper, one scanner process and two
  snapshot  rounds=3 small=100000 large=1000000 folder=DIR
                                    plan from a generated file against gzip -dc of it
  history   rounds=3 small=100000 large=1000000 folder=DIR
                                    a plan that remembers what it sees of subscribers against one that does not
            live=20000 limit=0      the same from a real ZooKeeper with so many topics, at so many operations a second
  attach    topics=60 rate=20       acts on the subscribers of one Hedwig hub against two
  orphans   rounds=3 small=100000 large=1000000 folder=DIR
                                    a plan of ledgers that nothing names, from a generated file, against gzip -dc of it
  consumers rounds=5 each=1000 small=5000 large=50000
                                    JetStream's consumers against the servers' own lists, and one by one
  window    acts=20                 how long an act on a consumer of JetStream does not look
  pipeline  rounds=5 candidates=320000 keyed=30000 pages=64 deciders=16 acts=256
                                    connections=3
                                    candidates over JetStream against nats bench
  scale     rounds=5 candidates=96000 single=3000
                                    the same on servers that sync each message, one and three, and with second processes
  starts    rounds=25                 from the start of a decider to its first page, against a request of the nats CLI
  generate  topics=N file=FILE      only writes a snapshot file";

/// `NAME=VALUE` words of the command line.
pub(crate) struct Options(Vec<(String, String)>);

impl Options {
    fn parse(words: impl Iterator<Item = String>) -> Result<Options> {
        let pair = |word: String| match word.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => bail!("{word:?} is not NAME=VALUE\n{USAGE}"),
        };
        Ok(Options(words.map(pair).collect::<Result<_>>()?))
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str, default: u64) -> Result<u64> {
        self.text(name).map_or(Ok(default), |text| Ok(text.parse()?))
    }
}

fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let command = words.next().unwrap_or_default();
    let options = Options::parse(words)?;
    measure::say_where();
    match command.as_str() {
        "scan" => scan::run(&options),
        "limiter" => limiter::run(&options),
        "snapshot" => snapshot::run(&options),
        "attach" => attach::run(&options),
        "history" => history::run(&options),
        "orphans" => orphans::run(&options),
        "consumers" => consumers::run(&options),
        "window" => consumers::window(&options),
        "pipeline" => pipeline::run(&options),
        "scale" => scale::run(&options),
        "role" => pipeline::role(&options),
        "starts" => starts::run(&options),
        "generate" => snapshot::generate(&options),
        "reader" => limiter::reader(&options),
        _ => bail!("{USAGE}"),
    }
}
