//! Which entries of a table a journal has to hear of: those that came, went or changed.

/// Names of entries, some of them more than once.
#[derive(Debug, Default)]
pub(super) struct Touched(Vec<u64>);

impl Touched {
    pub(super) fn add(&mut self, id: u64) {
        self.0.push(id);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those since the last call, each once, in order.
    pub(super) fn take(&mut self) -> Vec<u64> {
        let mut touched = std::mem::take(&mut self.0);
        touched.sort_unstable();
        touched.dedup();
        touched
    }
}
