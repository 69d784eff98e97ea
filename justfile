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

# Each call of a scan for orphans over the whole captured tree goes wrong once, in every way. Not part of CI, which does it over a part:
# unoptimised it takes minutes, and an optimised build does.
orphans-long:
    cargo test --release --locked -p trimtab-tests --features long --test orphans faults:: -- --nocapture

# The model of the protocol with two decisions and every fault for each act. Not part of CI: it takes minutes and gigabytes.
model-long:
    cargo test --locked -p trimtab-model --features long -- --nocapture --test-threads=1

# Twenty-two changes of the workers' code, each of which the simulation must notice. Not part of CI: each is a build.
mutants:
    cargo run --profile test --locked -p trimtab-simulation -- mutants
