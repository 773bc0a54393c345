//! fairlead deploy
