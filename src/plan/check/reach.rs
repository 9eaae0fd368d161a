//! Which models a block can select.

use crate::catalog::{self, Model};
use crate::profile::{Block, Profile, ProfileError, Want};

/// Refuses blocks that partition GPUs of no model that the catalog knows.
pub(super) fn refuse_unknown_products(profile: &Profile) -> Result<(), ProfileError> {
    let wrong = profile.blocks.iter().filter(|block| {
        matches!(block.want, Want::Parts(_))
            && !catalog::has_product(|name| block.select.may_select(name))
    });
    let errors = wrong.map(|block| meets_none(profile, block, &[]));
    ProfileError::all(errors.collect()).map_or(Ok(()), Err)
}

/// True if a GPU of that model can reach this block: it selects one, and none before it has taken
/// all such GPUs.
pub(super) fn meets(block: &Block, earlier: &[Block], model: &Model) -> bool {
    let products: Vec<&str> = match model.product_names.as_slice() {
        [] => vec![model.product()],
        names => names.iter().map(String::as_str).collect(),
    };
    products.iter().any(|product| {
        let selected = block.select.may_select(product);
        selected
            && !earlier
                .iter()
                .any(|block| block.select.selects_all(product))
    })
}

/// The error of a block that selects no model that can be planned for.
pub(super) fn meets_none(profile: &Profile, block: &Block, earlier: &[Block]) -> ProfileError {
    let unknown: Vec<String> = catalog::incomplete()
        .iter()
        .filter(|model| {
            model
                .product_names
                .iter()
                .any(|name| block.select.may_select(name))
        })
        .map(|model| format!("{} lacks {}", model.key, model.missing.join(", ")))
        .collect();
    let known = catalog::models()
        .iter()
        .any(|model| meets(block, &[], model));
    if known && !earlier.is_empty() {
        let message = "the blocks before this one take every model it could select";
        return profile.error(block.span, message);
    }
    if known && !profile.models.is_empty() {
        let message = "this selects none of the models that the profile is for";
        return profile.error(block.span, message);
    }
    if unknown.is_empty() {
        let error = profile.error(block.span, "this selects no model that has MIG");
        return error.with_hint("mig-mps check --models lists their product names");
    }
    let message = "this selects only models of which too little is known";
    let hint = format!(
        "on such a machine, mig-mps up --dry-run tells: {}",
        unknown.join("; ")
    );
    profile.error(block.span, message).with_hint(hint)
}
