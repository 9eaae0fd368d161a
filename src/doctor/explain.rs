use super::{Explanation, checks, cuda_codes};
use crate::host::{nearest, without_needless_sudo};

/// Returns every explanation: checks by subject, then errors.
pub fn explanations() -> Vec<Explanation> {
    let checks = checks().into_iter().map(|check| Explanation {
        id: check.id.to_owned(),
        meaning: check.fault.to_owned(),
        why: check.why.to_owned(),
        remedy: check.remedy.to_owned(),
    });
    let codes = cuda_codes::codes().filter_map(cuda_codes::explain);
    checks.chain(codes).collect()
}

/// Explains an id or an error code. Fails with the nearest id, if there is one.
pub fn explain(word: &str) -> Result<Explanation, Option<String>> {
    let all = explanations();
    if let Some(found) = all.iter().find(|one| one.id == word) {
        return Ok(Explanation {
            remedy: without_needless_sudo(&found.remedy),
            ..found.clone()
        });
    }
    let ids = all.iter().map(|one| one.id.as_str());
    Err(nearest(word, ids).map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_explained_in_full() {
        for one in explanations() {
            for text in [&one.meaning, &one.why, &one.remedy] {
                assert!(!text.is_empty() && !text.ends_with('.'), "{one:?}");
            }
            assert_eq!(explain(&one.id).unwrap().meaning, one.meaning);
        }
        assert_eq!(explain("daemon-ded"), Err(Some("daemon-dead".to_owned())));
        assert!(
            explain("805")
                .unwrap()
                .meaning
                .contains("CUDA_ERROR_MPS_CONNECTION_FAILED")
        );
    }
}
