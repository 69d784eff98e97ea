//! The only writes to a metadata store: transactions for orphan ledgers and their undo.

use zookeeper_client as zk;

use crate::error::{Class, Result, TargetError};
use crate::zk::Zk;

/// Who may do what with a node, as ZooKeeper has it: permission bits (1 read, 2 write, 4 create, 8 delete, 16 administer), scheme, id.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Access {
    pub(crate) permissions: i32,
    pub(crate) scheme: String,
    pub(crate) id: String,
}

/// The right to delete a node's children.
pub(crate) const DELETE: i32 = 8;

const PERMISSIONS: [(i32, zk::Permission); 5] = [
    (1, zk::Permission::READ),
    (2, zk::Permission::WRITE),
    (4, zk::Permission::CREATE),
    (DELETE, zk::Permission::DELETE),
    (16, zk::Permission::ADMIN),
];

/// One part of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Write<'a> {
    /// The node has this version.
    Check { path: &'a str, version: i32 },
    /// The node is not there, and is made. Its parent must be there.
    Create { path: &'a str, value: &'a [u8], access: &'a [Access] },
    /// The node has this version and no children, and is deleted.
    Delete { path: &'a str, version: i32 },
}

impl Write<'_> {
    fn path(&self) -> &str {
        match self {
            Write::Check { path, .. } | Write::Create { path, .. } | Write::Delete { path, .. } => path,
        }
    }
}

/// What came of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Answer {
    /// All of it was done.
    Done,
    /// None of it was: this part was not as expected.
    Refused { path: String, why: String },
}

impl Zk {
    /// Who may do what with a node; none when there is no such node.
    pub(crate) async fn access(&self, path: &str) -> Result<Option<Vec<Access>>> {
        let got = self.request("reading the access list of", path, |client| async move { client.get_acl(path).await });
        let access = |acl: &zk::Acl| Access {
            permissions: PERMISSIONS.iter().filter(|(_, one)| acl.permission().has(*one)).map(|(bit, _)| bit).sum(),
            scheme: acl.scheme().to_owned(),
            id: acl.id().to_owned(),
        };
        Ok(got.await?.map(|(acls, _)| acls.iter().map(access).collect()))
    }

    /// Carries out all of these, or none. Never tried again by itself: after an error it is not known whether it was done, and the nodes
    /// tell.
    pub(crate) async fn commit(&self, writes: &[Write<'_>]) -> Result<Answer> {
        let last = writes.last().map_or("/", |write| write.path());
        let error = |class, why: String| TargetError::new(class, format!("changing {last} in ZooKeeper"), why);
        let client = self.session(0).await?;
        let mut transaction = client.new_multi_writer();
        for write in writes {
            let added = match write {
                Write::Check { path, version } => transaction.add_check_version(path, *version),
                Write::Delete { path, version } => transaction.add_delete(path, Some(*version)),
                Write::Create { path, value, access } => {
                    let acls: Vec<zk::Acl> = access.iter().map(acl_of).collect();
                    let options = zk::CreateMode::Persistent.with_acls(zk::Acls::new(&acls));
                    transaction.add_create(path, value, &options)
                }
            };
            added.map_err(|e| error(Class::Invalid, format!("{}: {e}", write.path())))?;
        }
        for _ in writes {
            self.pace().one().await;
        }
        match tokio::time::timeout(self.options.request_timeout, transaction.commit()).await {
            Ok(Ok(_)) => Ok(Answer::Done),
            Ok(Err(zk::MultiWriteError::OperationFailed { index, source })) => {
                let path = writes.get(index).map_or(last, |write| write.path()).to_owned();
                match source {
                    zk::Error::NoAuth | zk::Error::AuthFailed => {
                        let why = format!("{source} for {path}; give trimtab's user the right to change it");
                        Err(error(Class::Refused, why))
                    }
                    source => Ok(Answer::Refused { path, why: source.to_string() }),
                }
            }
            Ok(Err(zk::MultiWriteError::RequestFailed { source })) => Err(error(Class::Transient, source.to_string())),
            Err(_) => {
                let seconds = self.options.request_timeout.as_secs();
                Err(error(Class::Transient, format!("no answer within {seconds} s; it may have been done")))
            }
        }
    }
}

fn acl_of(access: &Access) -> zk::Acl {
    let bits = PERMISSIONS.iter().filter(|(bit, _)| access.permissions & bit != 0);
    let permission = bits.fold(zk::Permission::NONE, |all, (_, one)| all | *one);
    zk::Acl::new(permission, zk::AuthId::new(&access.scheme, &access.id))
}
