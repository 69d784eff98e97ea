//! What lies in a rig's folder besides the state: logging, certificate, offloader; and how its JVMs are started.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::{CLUSTER, OFFLOADER, PulsarRig};
use crate::cache;
use crate::java::{flags, self_signed};
use crate::process::Spec;

impl PulsarRig {
    /// The cluster's own record names ports; after a restore they are others.
    pub(super) fn announce_cluster(&self) -> Result<()> {
        let json = serde_json::json!({ "serviceUrl": self.web(), "brokerServiceUrl": self.service() });
        self.rest("POST", &format!("clusters/{CLUSTER}"), Some(&json.to_string()))?
            .ok()
            .context("telling the cluster its new addresses")?;
        Ok(())
    }

    pub(super) fn prepare(&self) -> Result<()> {
        self.write(
            "log4j2.xml",
            r#"<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} %m%n"/></Console></Appenders>
  <Loggers><Root level="${sys:rig.level:-info}"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"#,
        )?;
        if let Some(secret) = &self.secret {
            self.write("token.secret", secret)?;
        }
        let nar = offloader(&self.classpath)?;
        fs::create_dir_all(self.folder.path().join("offloaders"))?;
        fs::copy(nar, self.folder.path().join("offloaders/disk.nar")).context("copying the offloader")?;
        if self.tls {
            self.write("certificate.pem", &self_signed(&self.folder.path().join("keystore.p12"))?)?;
        }
        Ok(())
    }

    pub(super) fn write(&self, name: &str, text: &str) -> Result<()> {
        let path = self.folder.path().join(name);
        fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
    }

    pub(super) fn java(&self, name: &str, heap_mb: u32, main: &str, args: &[String]) -> Result<Spec> {
        let folder = self.folder.path();
        let mut all = flags(heap_mb, self.clock, &self.agent);
        for side in ["bookie", "client"] {
            let class = format!(
                "org.apache.pulsar.metadata.bookkeeper.PulsarMetadata{}{}Driver",
                side[..1].to_uppercase(),
                &side[1..]
            );
            all.push(format!("-Dbookkeeper.metadata.{side}.drivers={class}"));
        }
        all.push(format!("-Dlog4j2.configurationFile={}", folder.join("log4j2.xml").display()));
        all.push(format!("-Djava.io.tmpdir={}", folder.join("tmp").display()));
        all.push(format!("-Drig.offload={}", folder.join("offload").display()));
        // A rig is thrown away; what matters is that a test does not wait for the disk.
        all.push("-Dzookeeper.forceSync=no".into());
        all.push("-Dzookeeper.admin.enableServer=false".into());
        if name == "client" || name == "set-up" {
            all.push("-Drig.level=warn".into());
        }
        all.extend(["-cp".into(), self.classpath.clone(), main.into()]);
        all.extend(args.iter().cloned());
        Ok(Spec {
            name: name.into(),
            program: "java".into(),
            args: all,
            env: vec![],
            folder: folder.into(),
            log: folder.join(format!("log/{name}.log")),
        })
    }

    pub(super) fn set_up_cluster(&self) -> Result<()> {
        let mark = self.folder.path().join("cluster-made");
        if mark.exists() {
            return Ok(());
        }
        let store = format!("zk:{}", self.zk());
        let args = [
            "--cluster",
            CLUSTER,
            "--metadata-store",
            &store,
            "--configuration-metadata-store",
            &store,
            "--web-service-url",
            &self.web(),
            "--broker-service-url",
            &self.service(),
            "--initial-num-transaction-coordinators",
            "2",
        ];
        let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
        let spec = self.java("set-up", 128, "org.apache.pulsar.PulsarClusterMetadataSetup", &args)?;
        let mut command = Command::new(&spec.program);
        command.args(&spec.args).current_dir(&spec.folder);
        cache::run(&mut command, "install a JDK, 17 or newer").context("setting the cluster up")?;
        fs::write(mark, "").context("noting that the cluster is set up")
    }
}

/// The offloader in the archive that a broker loads it from.
pub(super) fn offloader(classpath: &str) -> Result<PathBuf> {
    const ABOUT: &str = "name: disk\ndescription: one file a ledger\noffloaderFactoryClass: DiskOffloader\n";
    let classes = cache::java_jar("disk-offloader", &[OFFLOADER], classpath, "")?;
    let name = format!("jars/disk-offloader-nar-{}", cache::key([OFFLOADER.1, ABOUT, classpath]));
    let made = cache::entry(
        &name,
        |folder| folder.join("disk.nar").is_file(),
        |folder| {
            let tree = folder.join("tree/META-INF");
            fs::create_dir_all(tree.join("services"))?;
            fs::create_dir_all(tree.join("bundled-dependencies"))?;
            fs::copy(classes, tree.join("bundled-dependencies/disk-offloader.jar"))?;
            fs::write(tree.join("services/pulsar-offloader.yaml"), ABOUT)?;
            let mut jar = Command::new("jar");
            jar.arg("cf").arg(folder.join("disk.nar")).arg("-C").arg(folder.join("tree")).arg(".");
            cache::run(&mut jar, "install a JDK, 17 or newer").context("packing the offloader")?;
            Ok(())
        },
    )?;
    Ok(made.join("disk.nar"))
}
