//! fairlead agent
