//! Configuration text. Any text gives a configuration or an error of one sentence, and what was
//! accepted survives being written and read again. No machine is looked at.

/// Takes `data` for the text of a configuration file.
pub fn config(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        control::config::fuzz(text);
    }
}
