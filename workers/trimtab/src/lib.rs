//! Gives back the storage that log and ledger based messaging systems never reclaim by themselves.
