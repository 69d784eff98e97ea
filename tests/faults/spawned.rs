//! `--nats spawn`: a NATS server of one's own, that ends when its process ends, however that ends.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use trimtab_tests::cache;
use trimtab_tests::trimtab::{Running, begin};

use crate::ground::{Ground, Stage, Trims};

/// The NATS server that uses this state folder, if one runs.
fn server(state: &Path) -> Option<u32> {
    let conf = state.join("nats/server.conf").display().to_string();
    std::fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
        let is = words[0].ends_with(b"nats-server") && words.contains(&conf.as_bytes());
        // A zombie has no command line, so what is found runs.
        is.then_some(pid)
    })
}

fn wait_until(what: &str, mut yes: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !yes() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The addresses that a process listens on.
fn listens(pid: u32) -> Vec<String> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .flatten()
        .filter_map(|fd| std::fs::read_link(fd.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let of = |table: &str| -> Vec<String> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        let rows = text.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
        // State 0A is listening; the tenth column is the socket.
        rows.filter(|row| row[3] == "0A" && sockets.iter().any(|socket| socket == row[9]))
            .map(|row| format!("{table} {}", row[1]))
            .collect()
    };
    [of("tcp"), of("tcp6")].concat()
}

fn signal(running: &Running, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(running.pid()).unwrap()).unwrap(), signal).unwrap();
}

#[test]
#[ignore = "needs ZooKeeper, nats-server"]
fn a_spawned_nats_server_ends_with_its_process() {
    let ground = Ground::new("faults", 16);
    let stage = Stage::new();
    let broker = stage.broker(Trims::of(&ground));
    let (from, url) = (ground.from(), broker.url());
    let folder = cache::nats_server().unwrap().parent().unwrap().display().to_string();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let env = [("PATH", path.as_str())];
    let args = ["run", "--apply", "--nats", "spawn", "--from", &from, "--admin", &url, "--max-share", "1"];
    let serving = [&args[..], &["--every", "1h"]].concat();
    let state = ground.state("spawned");

    // Once through, over JetStream. Nothing is left behind but its folder.
    let ended = begin(&state, &args, &env).wait().exits(0);
    assert!(ended.out.contains("ledgers are gone") && server(&state).is_none(), "{ended:?}");
    assert!(state.join("nats/store").is_dir() && !state.join("state.db").exists());
    let conf = std::fs::read_to_string(state.join("nats/server.conf")).unwrap();
    assert!(conf.contains("sync_interval: always"), "{conf}");

    // Killed without warning: the server ends as well, and gives its folder back in good order.
    for round in 0..3 {
        let mut running = begin(&state, &serving, &env);
        wait_until("a server runs", || server(&state).is_some_and(|pid| !listens(pid).is_empty()));
        let pid = server(&state).unwrap();
        let listening = listens(pid);
        // 127.0.0.1, and no port that anybody chose.
        assert!(listening.iter().all(|at| at.starts_with("tcp 0100007F:") && !at.ends_with(":105E")), "{listening:?}");
        if round == 0 {
            // Before it has done anything, and later.
            wait_until("it works", || state.join("audit/executor.jsonl").exists());
        }
        assert!(running.runs());
        signal(&running, Signal::KILL);
        let _ = running.wait();
        // The next one is started at once, and waits for the last one's end.
        if round == 1 {
            let ended = begin(&state, &args, &env).wait();
            assert_eq!(ended.code, 0, "{ended:?}");
        }
        wait_until("the server has ended", || server(&state).is_none());
    }

    // A second one on the same folder is told so, and the first one keeps its server. Ctrl-C is for trimtab alone.
    let mut running = begin(&state, &serving, &env);
    wait_until("a server runs", || server(&state).is_some());
    let pid = server(&state);
    let second = begin(&state, &args, &env).wait().exits(1);
    assert!(second.err.contains("another trimtab uses this state folder"), "{second:?}");
    assert!(running.runs() && server(&state) == pid);
    let group = rustix::process::getpgid(Pid::from_raw(i32::try_from(pid.unwrap()).unwrap())).unwrap();
    assert_ne!(group, rustix::process::getpgid(Pid::from_raw(i32::try_from(running.pid()).unwrap())).unwrap());
    signal(&running, Signal::INT);
    let ended = running.wait().exits(0);
    assert!(!ended.err.contains("Connection refused") && server(&state).is_none(), "{ended:?}");

    // Where there is none, that is what it says.
    let running = begin(&ground.state("empty-path"), &args, &[("PATH", "/usr/bin:/bin")]);
    let ended = running.wait();
    assert!(ended.code == 1 && ended.err.contains("needs a nats-server on the PATH"), "{ended:?}");
}
