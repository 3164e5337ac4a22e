//! A VPP as the gateway that is measured, and what it is measured with.
//!
//! What a gateway opens has to be sealed first. Its far ends, all in one VPP, do that before it starts: a packet for each
//! tunnel, which it takes over and over, as nothing here protects against replay.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::capture;
use super::instance::{Instance, VppError};
use super::script::{self, Direction, Order, Setup};

/// A file of one tunnel's packets is taken so often that it would be all the generator does.
const CAPTURED_MIN: u32 = 1024;

/// The gateway, running.
pub struct Gateway {
    /// The program.
    pub instance: Instance,
    setup: Setup,
    /// Has the files of what is opened; after the program, as that has a folder in it.
    files: Folder,
}

impl Gateway {
    /// Starts it, and for packets of these sizes what makes them. `program` is VPP's; all files lie below `parent`.
    ///
    /// # Errors
    /// [`VppError`].
    pub fn start(
        program: &Path,
        parent: &Path,
        setup: Setup,
        sizes: &[usize],
    ) -> Result<Gateway, VppError> {
        let files = Folder::below(parent)?;
        if setup.direction == Direction::Open {
            seal_first(program, &files, setup.tunnels, sizes)?;
        }
        let folder = files.0.join("gateway");
        let instance = Instance::start(program, &folder, &script::gateway(setup))?;
        Ok(Gateway { instance, setup, files })
    }

    /// Cycles per packet of this size inside, of so many short whiles.
    ///
    /// # Errors
    /// [`VppError`].
    pub fn measure(&self, order: Order, size: usize, times: usize) -> Result<Vec<f64>, VppError> {
        let stream = match self.setup.direction {
            Direction::Seal => script::stream(self.setup.tunnels, order, size),
            Direction::Open => script::replay(&self.files.captured(order, size)),
        };
        self.instance.measure(&stream, times)
    }
}

/// What a gateway with so many tunnels is to open, in both orders.
fn seal_first(
    program: &Path,
    files: &Folder,
    tunnels: u32,
    sizes: &[usize],
) -> Result<(), VppError> {
    let folder = files.0.join("far-ends");
    let far_ends = Instance::start(program, &folder, &script::far_ends(tunnels))?;
    for size in sizes {
        let packets = tunnels.max(CAPTURED_MIN);
        let content = script::content(tunnels, *size);
        // Not that file itself: VPP empties it when it is told to capture no more.
        let growing = files.0.join(format!("{size}.growing"));
        let bytes = far_ends.capture(&content, packets, &growing)?;
        fs::write(files.captured(Order::Turns, *size), &bytes)?;
        fs::write(files.captured(Order::Random, *size), capture::shuffled(&bytes)?)?;
    }
    Ok(())
}

/// A folder that goes with who made it.
struct Folder(PathBuf);

impl Folder {
    fn below(parent: &Path) -> Result<Folder, VppError> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let number = MADE.fetch_add(1, Relaxed);
        let folder = parent.join(format!("peregrine-vpp-{}-{number}", std::process::id()));
        // Nobody else's, even where everybody may make one.
        DirBuilder::new().mode(0o700).create(&folder)?;
        Ok(Folder(folder))
    }

    fn captured(&self, order: Order, size: usize) -> PathBuf {
        self.0.join(format!("{}-{size}.pcap", order.name()))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::script::Selection;
    use super::*;

    #[test]
    fn where_vpp_does_not_start_nothing_is_left() {
        let parent = tempfile::tempdir().unwrap();
        let program = parent.path().join("vpp");
        for direction in Direction::ALL {
            let setup = Setup { selection: Selection::PointToPoint, tunnels: 2, direction };
            let started = Gateway::start(&program, parent.path(), setup, &[64]);
            assert!(matches!(started.err(), Some(VppError::Absent { .. })));
        }
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }
}
