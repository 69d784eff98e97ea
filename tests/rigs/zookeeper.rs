//! A ZooKeeper alone that asks who one is: a port with TLS beside the plain one, and users of SASL.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::cache;
use crate::java::{JavaClient, Shift, clock_agent, flags};
use crate::ports::Port;
use crate::process::{Process, Spec};
use crate::pulsar::{POM, client_jar, four_letters};

/// The user that [`ZooKeeperRig`] knows for SASL, and its password.
pub const SASL_USER: (&str, &str) = ("scanner", "sasl-secret");
const PASSWORD: &str = "rig-password";

/// Prints a key of a store as PEM.
const KEY: &str = r#"
class Key {
    public static void main(String[] args) throws Exception {
        var store = java.security.KeyStore.getInstance("PKCS12");
        try (var in = new java.io.FileInputStream(args[0])) {
            store.load(in, args[1].toCharArray());
        }
        var key = store.getKey(args[2], args[1].toCharArray()).getEncoded();
        System.out.println("-----BEGIN PRIVATE KEY-----");
        System.out.println(java.util.Base64.getMimeEncoder(64, new byte[] {10}).encodeToString(key));
        System.out.println("-----END PRIVATE KEY-----");
    }
}
"#;

/// Running ZooKeeper. Dropping it kills it and removes its folder.
#[derive(Debug)]
pub struct ZooKeeperRig {
    process: Option<Process>,
    plain: Port,
    secure: Port,
    folder: TempDir,
}

impl ZooKeeperRig {
    /// Boots it. With `client_certificates`, the port with TLS asks for one, signed by the rig's own authority.
    pub fn start(client_certificates: bool) -> Result<ZooKeeperRig> {
        let folder = tempfile::Builder::new().prefix("trimtab-zk-").tempdir().context("creating the rig's folder")?;
        fs::create_dir_all(folder.path().join("data"))?;
        let mut rig = ZooKeeperRig { process: None, plain: Port::take()?, secure: Port::take()?, folder };
        rig.certificates()?;
        let path = |name: &str| rig.folder.path().join(name).display().to_string();
        let config = format!(
            "tickTime=1000\ndataDir={}\nclientPortAddress=127.0.0.1\nclientPort={}\nsecureClientPortAddress=127.0.0.1\n\
             secureClientPort={}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
             ssl.keyStore.location={}\nssl.keyStore.password={PASSWORD}\nssl.trustStore.location={}\n\
             ssl.trustStore.password={PASSWORD}\nssl.clientAuth={}\nssl.hostnameVerification=false\n\
             authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\nminSessionTimeout=2000\nmaxSessionTimeout=60000\n",
            path("data"),
            rig.plain.number(),
            rig.secure.number(),
            path("server.p12"),
            path("trust.p12"),
            if client_certificates { "need" } else { "none" },
        );
        fs::write(rig.folder.path().join("zookeeper.cfg"), config)?;
        let (user, password) = SASL_USER;
        let jaas = format!(
            "Server {{ org.apache.zookeeper.server.auth.DigestLoginModule required user_{user}=\"{password}\"; }};\n"
        );
        fs::write(rig.folder.path().join("jaas.conf"), jaas)?;
        rig.boot()?;
        Ok(rig)
    }

    fn boot(&mut self) -> Result<()> {
        let classpath = cache::maven_classpath("pulsar", POM)?;
        let mut args = flags(128, Shift::NONE, &clock_agent(&classpath)?);
        let folder = self.folder.path();
        args.push(format!("-Djava.security.auth.login.config={}", folder.join("jaas.conf").display()));
        args.push("-Dzookeeper.forceSync=no".into());
        let main = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
        args.extend(["-cp".into(), classpath, main.into(), "zookeeper.cfg".into()]);
        let mut process = Process::start(&Spec {
            name: "zookeeper".into(),
            program: "java".into(),
            args,
            env: vec![],
            folder: folder.to_owned(),
            log: folder.join("log"),
        })?;
        let address = self.plain();
        process.wait_until(Duration::from_secs(60), || {
            four_letters(&address, "srvr").is_ok_and(|said| said.contains("Zxid"))
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// A client that takes commands about ZooKeeper; it is nobody in particular.
    pub fn client(&self) -> Result<JavaClient> {
        let classpath = cache::maven_classpath("pulsar", POM)?;
        let jar = client_jar(&classpath)?;
        let mut args = flags(128, Shift::NONE, &clock_agent(&classpath)?);
        let nowhere = "pulsar://127.0.0.1:1".to_owned();
        args.extend([
            "-cp".into(),
            format!("{classpath}:{}", jar.display()),
            "RigClient".into(),
            nowhere,
            self.plain(),
        ]);
        let folder = self.folder.path().to_owned();
        let log = folder.join("client.log");
        JavaClient::start(&Spec { name: "client".into(), program: "java".into(), args, env: vec![], folder, log })
    }

    /// The plain address, `host:port`.
    pub fn plain(&self) -> String {
        self.plain.address()
    }

    /// The address with TLS.
    pub fn secure(&self) -> String {
        self.secure.address()
    }

    /// The authority (PEM) that its certificate is signed by.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A client's certificate and key (PEM).
    pub fn certificate(&self) -> (PathBuf, PathBuf) {
        (self.folder.path().join("client.pem"), self.folder.path().join("client.key"))
    }

    /// An authority that signed nothing here.
    pub fn other_ca(&self) -> PathBuf {
        self.folder.path().join("other.pem")
    }

    /// An authority, a certificate each for the server and a client, and an authority that has nothing to do with them, by the
    /// JDK's own tool.
    fn certificates(&self) -> Result<()> {
        let names = "san=ip:127.0.0.1,dns:localhost";
        for (alias, extensions) in
            [("ca", "bc:c=ca:true"), ("other", "bc:c=ca:true"), ("server", names), ("client", "eku=clientAuth")]
        {
            let name = format!("CN={alias}");
            let store = format!("{alias}.p12");
            self.keytool(&["-genkeypair", "-alias", alias, "-dname", &name, "-keystore", &store, "-ext", extensions])?;
        }
        for alias in ["ca", "other"] {
            let (store, file) = (format!("{alias}.p12"), format!("{alias}.pem"));
            self.keytool(&["-exportcert", "-rfc", "-alias", alias, "-keystore", &store, "-file", &file])?;
        }
        self.keytool(&["-importcert", "-noprompt", "-alias", "ca", "-keystore", "trust.p12", "-file", "ca.pem"])?;
        for (alias, extensions) in [("server", names), ("client", "eku=clientAuth")] {
            let (store, request, signed) = (format!("{alias}.p12"), format!("{alias}.csr"), format!("{alias}.pem"));
            self.keytool(&["-certreq", "-alias", alias, "-keystore", &store, "-file", &request])?;
            let sign = ["-gencert", "-rfc", "-alias", "ca", "-keystore", "ca.p12", "-infile", &request];
            self.keytool(&[&sign[..], &["-outfile", &signed, "-ext", extensions]].concat())?;
            self.keytool(&["-importcert", "-noprompt", "-alias", "ca", "-keystore", &store, "-file", "ca.pem"])?;
            self.keytool(&["-importcert", "-noprompt", "-alias", alias, "-keystore", &store, "-file", &signed])?;
        }
        // No option of the tool gives the key away; a program of a few lines does.
        fs::write(self.folder.path().join("Key.java"), KEY)?;
        let mut java = Command::new("java");
        java.args(["Key.java", "client.p12", PASSWORD, "client"]).current_dir(self.folder.path());
        fs::write(self.folder.path().join("client.key"), cache::run(&mut java, "install a JDK")?)?;
        Ok(())
    }

    fn keytool(&self, args: &[&str]) -> Result<()> {
        let mut keytool = Command::new("keytool");
        keytool.args(args).args(["-storetype", "PKCS12", "-storepass", PASSWORD]).current_dir(self.folder.path());
        if args[0] == "-genkeypair" {
            // Keys of elliptic curves come out of a JDK without their public half, which not every client takes.
            keytool.args(["-keyalg", "RSA", "-keysize", "2048", "-validity", "3650"]);
        } else if args[0] == "-gencert" {
            keytool.args(["-validity", "3650"]);
        }
        cache::run(&mut keytool, "install a JDK")?;
        Ok(())
    }
}
