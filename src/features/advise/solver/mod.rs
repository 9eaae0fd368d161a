//! Demands of programs and layouts of GPUs, as numbers, and the smallest hardware for them.

mod knapsack;
mod relaxation;
mod search;
mod simplex;

use crate::profile::MeasuredDevice;

pub use search::{SearchResult, Solution, fewest_gpus, find_smallest};

/// The parts of a device: tenths of a percent.
pub const PARTS: u32 = 1000;

/// A size of devices on the GPUs of a group: an instance profile, or the whole GPU.
#[derive(Clone, Debug)]
pub struct Size {
    pub group: usize,
    pub device: MeasuredDevice,
    pub slices: u32,
    pub memory_mib: u64,
    /// The most clients of such a device.
    pub clients: u32,
}

/// Devices that one GPU can have at once.
#[derive(Clone, Debug)]
pub struct GpuLayout {
    pub group: usize,
    /// The number of devices of each size.
    pub counts: Vec<u32>,
    /// The largest free block beside them.
    pub free: u32,
}

/// Something that a device of a size does for a program.
#[derive(Clone, Debug)]
pub struct Offer {
    pub size: usize,
    /// The parts of the device that it takes.
    pub parts: u32,
    pub memory_mib: u64,
    pub copies: u32,
    /// The part of the demand that it meets, of 1.
    pub supply: f64,
    /// The measurement that it rests on.
    pub row: usize,
}

/// The demand of one program.
#[derive(Clone, Debug)]
pub struct Demand {
    pub offers: Vec<Offer>,
    /// The other programs that may share a device with it.
    pub friends: Vec<usize>,
}

/// Layouts that GPUs can have, and what programs want.
#[derive(Clone, Debug, Default)]
pub struct PackingProblem {
    pub sizes: Vec<Size>,
    /// The number of GPUs of each group.
    pub gpus: Vec<u32>,
    /// Every layout, also those to which something could be added.
    pub layouts: Vec<GpuLayout>,
    pub demands: Vec<Demand>,
    /// The multiple of the usual work after which the search ends.
    pub effort: u32,
}

/// An offer on a device: the program, and which one of its offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Load {
    pub demand: usize,
    pub offer: usize,
}

/// A device with what runs on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilledDevice {
    pub size: usize,
    pub loads: Vec<Load>,
}

impl PackingProblem {
    pub fn offer(&self, load: Load) -> &Offer {
        &self.demands[load.demand].offers[load.offer]
    }

    /// Returns the problem of programs that share no device with others.
    fn without_sharing(&self) -> Self {
        let mut apart = self.clone();
        for demand in &mut apart.demands {
            demand.friends.clear();
            for offer in &mut demand.offers {
                offer.parts = PARTS;
            }
        }
        apart
    }

    /// Returns the slices of so many devices of each size.
    pub fn total_slices(&self, counts: &[u32]) -> u32 {
        let sizes = counts.iter().zip(&self.sizes);
        sizes.map(|(count, size)| count * size.slices).sum()
    }

    /// Returns the number of which the slices of every layout are a multiple.
    pub fn slices_unit(&self) -> u32 {
        self.layouts.iter().fold(0, |unit, layout| {
            greatest_common_divisor(self.total_slices(&layout.counts), unit)
        })
    }
}

pub fn greatest_common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 {
        one
    } else {
        greatest_common_divisor(other, one % other)
    }
}
