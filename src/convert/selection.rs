//! Which GPUs an entry of mig-parted's configuration selects.

use super::device_filter::DeviceFilter;
use super::mig_parted::{ConfigEntry, GpuChoice};
use crate::catalog::{Model, models};

impl ConfigEntry {
    /// True if there is no GPU that it selects.
    pub(super) fn selects_nothing(&self) -> bool {
        let is_listed = self.devices != GpuChoice::Index(Vec::new());
        let by_id = self.filter.is_empty() || self.filter.iter().any(DeviceFilter::is_id);
        !(is_listed && by_id)
    }

    /// True if it selects only GPUs that the catalog does not know.
    pub(super) fn is_unknown(&self) -> bool {
        !self.filter.is_empty() && self.products().is_empty()
    }

    /// True if both may select the same GPU.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        if let (GpuChoice::Index(a), GpuChoice::Index(b)) = (&self.devices, &other.devices)
            && !a.iter().any(|index| b.contains(index))
        {
            return false;
        }
        let products = other.products();
        self.filter.is_empty()
            || other.filter.is_empty()
            || self.filter.iter().any(|own| other.filter.contains(own))
            || self.products().iter().any(|own| products.contains(own))
    }

    /// True if it selects every GPU that the other selects.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let has_indices = match (&self.devices, &other.devices) {
            (GpuChoice::All, _) => true,
            (GpuChoice::Index(_), GpuChoice::All) => false,
            (GpuChoice::Index(a), GpuChoice::Index(b)) => b.iter().all(|index| a.contains(index)),
        };
        let own = self.products();
        let has = |filter: &DeviceFilter| {
            let products = filter.products();
            let is_known = !products.is_empty();
            self.filter.contains(filter)
                || is_known && products.iter().all(|product| own.contains(product))
        };
        let has_models =
            self.filter.is_empty() || !other.filter.is_empty() && other.filter.iter().all(has);
        has_indices && has_models
    }

    /// The models of the catalog that it selects.
    pub(super) fn models(&self) -> impl Iterator<Item = &'static Model> {
        let products = self.products();
        let any = self.filter.is_empty();
        models().iter().filter(move |model| {
            let mut names = model.product_names.iter();
            any || names.any(|name| products.contains(&name.as_str()))
        })
    }

    fn products(&self) -> Vec<&'static str> {
        let filters = self.filter.iter();
        filters.flat_map(DeviceFilter::products).collect()
    }
}
