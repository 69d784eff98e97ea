# What CI runs.
ci:
    bash .ci/run

# Everything, real systems included.
test:
    tests/run

# What needs nothing but Rust.
quick:
    tests/run --quick

# Formats, then lints.
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets --locked -- -D warnings

# Writes schemas/ anew from the types.
schemas:
    cargo run --locked -p trimtab -- schemas schemas

# A real Pulsar with a mess in it, until Ctrl-D.
mess:
    cargo run --locked -p trimtab-tests --bin rig -- mess

# ZooKeeper over TLS. Not part of CI: the client's TLS brings a second cryptographic library, which takes minutes to build.
zk-tls:
    cargo test --locked -p trimtab-tests --features zk-tls --test faults tls:: -- --ignored
