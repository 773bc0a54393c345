//! fairlead tests
