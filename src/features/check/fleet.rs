use crate::catalog::{self, Model};
use crate::plan::Refusal;
use crate::plan::virtual_node::{Shape, alone, meets, meets_none};
use crate::profile::{Profile, ProfileError, Want};

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

/// Judges each block on every model that the profile is for and the block can meet.
///
/// # Errors
/// A [`ProfileError`] for a block that partitions and can meet no model, and for a model that no block can meet.
pub fn against_all(profile: &Profile) -> Result<Vec<BlockOnModel>, ProfileError> {
    let models = models_of(profile)?;
    let mut judged = Vec::new();
    for (position, block) in profile.blocks.iter().enumerate() {
        let earlier = &profile.blocks[..position];
        let met = models
            .iter()
            .copied()
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
    for ((_, span), model) in profile.models.iter().zip(models) {
        if !judged.iter().any(|one| one.model.key == model.key) {
            let message = format!("no block selects {} ({})", model.key, model.product());
            return Err(profile.error(*span, message));
        }
    }
    Ok(judged)
}

/// The models that the profile is for.
fn models_of(profile: &Profile) -> Result<Vec<&'static Model>, ProfileError> {
    if profile.models.is_empty() {
        return Ok(catalog::models().iter().collect());
    }
    let named = profile.models.iter().map(|(word, span)| {
        catalog::find(word).map_err(|unknown| profile.error(*span, unknown.to_string()))
    });
    // All mistakes at once.
    let (found, wrong): (Vec<_>, Vec<_>) = named.partition(Result::is_ok);
    let wrong = wrong.into_iter().filter_map(Result::err);
    match ProfileError::all(wrong.collect()) {
        Some(error) => Err(error),
        None => Ok(found.into_iter().flatten().collect()),
    }
}
