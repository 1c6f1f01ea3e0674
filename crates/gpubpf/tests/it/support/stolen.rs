//! Launches of kernels that steal, as whoever launches them in the place of others does it.

use gpuwhy_gpubpf::sim::{Device, Facts, Image, Launch, LaunchError};
use gpuwhy_gpubpf::splice::{Record, Stealing};

/// A launch's record on a device, and what a launch leaves in it.
pub struct Records {
    at: u64,
    bytes: usize,
}

impl Records {
    pub fn new(device: &mut Device, stealing: &Stealing) -> Records {
        let bytes = Record::bytes(stealing.order.is_some()) as usize;
        Records { at: device.upload(&vec![0; bytes]).unwrap(), bytes }
    }

    /// Launches the kernel that steals in the place of `launch`, with `most` blocks or as many as fit at once.
    pub fn launch(
        &self,
        device: &mut Device,
        image: &Image,
        stealing: &Stealing,
        launch: &Launch,
        most: Option<u32>,
    ) -> Result<Facts, LaunchError> {
        let name = stealing.name();
        let total: u64 = launch.grid.iter().map(|side| u64::from(*side)).product();
        let of = |blocks: u32| {
            let mut parameters = launch.parameters.to_vec();
            parameters.push(Stealing::parameter(self.at, launch.grid, blocks).to_vec());
            parameters
        };
        let parameters = of(0);
        let alone =
            Launch { kernel: &name, grid: [1, 1, 1], parameters: &parameters, ..launch.clone() };
        let resident = u64::from(device.occupancy(image, &alone)?) * device.sms();
        let blocks = most.map_or(resident, u64::from).min(total) as u32;
        let parameters = of(blocks);
        let facts = device.launch(
            image,
            &Launch {
                kernel: &name,
                grid: [blocks, 1, 1],
                parameters: &parameters,
                ..launch.clone()
            },
        )?;
        let left = device.read(self.at, self.bytes).unwrap();
        assert!(left.iter().all(|byte| *byte == 0), "the record is as it was");
        Ok(facts)
    }
}
