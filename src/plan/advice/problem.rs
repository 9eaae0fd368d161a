//! Demands of programs and layouts of GPUs, as numbers.

/// The parts of a device: tenths of a percent.
pub(super) const PARTS: u32 = 1000;

/// A size of devices on the GPUs of a group: an instance profile, or the whole GPU.
#[derive(Clone, Debug)]
pub(super) struct Size {
    pub(super) slices: u32,
    pub(super) memory_mib: u64,
}

/// Devices that one GPU can have at once.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) group: usize,
    /// The number of devices of each size.
    pub(super) counts: Vec<u32>,
    /// The largest free block beside them.
    pub(super) free: u32,
}

/// Something that a device of a size does for a program.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) size: usize,
    /// The parts of the device that it takes.
    pub(super) parts: u32,
    pub(super) memory_mib: u64,
    /// The part of the demand that it meets, of 1.
    pub(super) supply: f64,
    /// The measurement that it rests on.
    pub(super) row: usize,
}

/// The demand of one program.
#[derive(Clone, Debug)]
pub(super) struct Demand {
    pub(super) offers: Vec<Offer>,
    /// The other programs that may share a device with it.
    pub(super) friends: Vec<usize>,
}

/// Layouts that GPUs can have, and what programs want.
#[derive(Clone, Debug)]
pub(super) struct Problem {
    pub(super) sizes: Vec<Size>,
    /// The number of GPUs of each group.
    pub(super) gpus: Vec<u32>,
    /// Every layout, also those to which something could be added.
    pub(super) layouts: Vec<Layout>,
    pub(super) demands: Vec<Demand>,
}

/// An offer on a device: the program, and which one of its offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Load {
    pub(super) demand: usize,
    pub(super) offer: usize,
}

/// A device with what runs on it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FilledDevice {
    pub(super) size: usize,
    pub(super) loads: Vec<Load>,
}

impl Problem {
    pub(super) fn offer(&self, load: Load) -> &Offer {
        &self.demands[load.demand].offers[load.offer]
    }

    /// Returns the slices of so many devices of each size.
    pub(super) fn slices(&self, counts: &[u32]) -> u32 {
        let sizes = counts.iter().zip(&self.sizes);
        sizes.map(|(count, size)| count * size.slices).sum()
    }

    /// Returns the number of which the slices of every layout are a multiple.
    pub(super) fn slices_unit(&self) -> u32 {
        let layouts = self.layouts.iter();
        layouts.fold(0, |unit, layout| {
            common_divisor(self.slices(&layout.counts), unit)
        })
    }
}

pub(super) fn common_divisor(one: u32, other: u32) -> u32 {
    if other == 0 {
        one
    } else {
        common_divisor(other, one % other)
    }
}
