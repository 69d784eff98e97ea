//! Globs over names of topics; `*` does not cross a slash.

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// Compiles globs; the text is what is wrong with one of them.
pub(crate) fn globs(texts: &[String]) -> std::result::Result<GlobSet, String> {
    let mut set = GlobSetBuilder::new();
    for text in texts {
        let glob = GlobBuilder::new(text).literal_separator(true).build();
        set.add(glob.map_err(|e| format!("glob {text:?} is not valid: {e}"))?);
    }
    set.build().map_err(|e| e.to_string())
}
