//! What the servers of a cluster say of each other.

/// What a server of a cluster says about all of them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct View {
    pub(crate) servers: Vec<ClusterServer>,
}

/// A server of a cluster, as one of them sees it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct ClusterServer {
    pub(crate) id: String,
    /// Empty if it is not known: of a server that has never been told how it is reached.
    pub(crate) host: String,
    /// The name that it announces beside that (`cluster-announce-hostname`); empty if it has none.
    pub(crate) name: String,
    pub(crate) port: u16,
    /// The number of the configuration in which it got its slots.
    pub(crate) epoch: u64,
    /// It is the one that says this.
    pub(crate) is_itself: bool,
    pub(crate) is_master: bool,
    /// From the first to the last, sorted.
    pub(crate) slots: Vec<(u16, u16)>,
}
