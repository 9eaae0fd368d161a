use super::Shape;
use super::virtual_node::alone;
use crate::catalog::{self, Model};
use crate::plan::Refusal;
use crate::profile::{Block, Profile, ProfileError, Selector, Want};

/// One block of a profile judged on one model.
#[derive(Debug)]
pub struct BlockOnModel {
    /// Which block, from 0.
    pub block: usize,
    /// Which model.
    pub model: &'static Model,
    /// The result for such a GPU, or the reason for none.
    pub shape: Result<Shape, Refusal>,
}

/// Judges each block on every model that it can meet.
///
/// # Errors
/// A [`ProfileError`] for a block that partitions and can meet no model.
pub fn against_all(profile: &Profile) -> Result<Vec<BlockOnModel>, ProfileError> {
    let mut judged = Vec::new();
    for (position, block) in profile.blocks.iter().enumerate() {
        let earlier = &profile.blocks[..position];
        let met = catalog::models()
            .iter()
            .filter(|model| meets(block, earlier, model));
        let before = judged.len();
        judged.extend(met.map(|model| BlockOnModel {
            block: position,
            model,
            shape: alone(profile, block, model),
        }));
        // Any GPU can be a whole one, also of a model without MIG, which the catalog does not have.
        if judged.len() == before && matches!(block.want, Want::Parts(_)) {
            return Err(meets_none(profile, block, earlier));
        }
    }
    Ok(judged)
}

/// True if a GPU of that model can reach this block: it selects one, and none before it has taken
/// all such GPUs.
fn meets(block: &Block, earlier: &[Block], model: &Model) -> bool {
    let products: Vec<&str> = match model.product_names.as_slice() {
        [] => vec![model.product()],
        names => names.iter().map(String::as_str).collect(),
    };
    let every = |block: &Block, product: &str| match &block.select {
        Selector::All => true,
        Selector::Product(regex) => regex.is_match(product),
        _ => false,
    };
    products.iter().any(|product| {
        let selected = block.select.may_select(product);
        selected && !earlier.iter().any(|block| every(block, product))
    })
}

fn meets_none(profile: &Profile, block: &Block, earlier: &[Block]) -> ProfileError {
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
