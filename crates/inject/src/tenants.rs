//! The sources of records in this library. A new one is a module of its own and one line here.

use crate::tenant::Tenants;
use crate::{cupti, nccl};

/// All tenants, in the order in which they are called.
pub(crate) static TENANTS: Tenants = Tenants(&[
    &cupti::CuptiTenant, //
    &nccl::NcclTenant,
]);
