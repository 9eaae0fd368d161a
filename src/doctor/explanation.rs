/// An id or an error code, explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The id, or the number.
    pub id: String,
    pub meaning: String,
    /// The reason why it matters; of an error, its causes.
    pub why: String,
    pub remedy: String,
}
