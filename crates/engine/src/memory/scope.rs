//! Values by name, shared by programs and threads: parameters, tables, counters.
//!
//! Dense parameters start as tensors and become dense tables when a program that trains them is compiled; reading and setting
//! them by name works the same before and after. A scope is an ordinary value: two jobs in one process have one each.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use openfleet_core::Key;
use openfleet_table::{DenseSpec, DenseTable, Existing, Missing, Scratch, SparseSpec, SparseTable};
use parking_lot::{Mutex, RwLock};

use crate::error::{Error, Result};
use crate::value::{Elements, Tensor, check_memory_for};

/// A value that ops change while they hold its lock.
pub type State = Arc<Mutex<Tensor>>;

/// Values by name.
#[derive(Default)]
pub struct Scope {
    values: RwLock<BTreeMap<String, Value>>,
    /// Incremented whenever a value is replaced by another object, so that plans that hold the old object are compiled again.
    generation: AtomicU64,
    /// Training's counters by name, while a test program uses the names.
    pub(crate) counter_backups: Mutex<BTreeMap<String, CounterBackup>>,
}

/// A metric counter of training, set aside while a test program counts under the same name.
pub(crate) struct CounterBackup {
    /// The counts of training.
    pub(crate) training: Tensor,
    /// What the test program left under the name. If the value differs later, the user has set the counter.
    pub(crate) left_by_test: Tensor,
}

#[derive(Clone)]
enum Value {
    Tensor(State),
    Dense(Arc<DenseTable>),
    Sparse(Arc<SparseTable>),
}

impl Scope {
    /// An empty scope.
    pub fn new() -> Self {
        Scope::default()
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<String> {
        self.values.read().keys().cloned().collect()
    }

    /// A copy of the value under a name; `None` if there is none or it is a sparse table.
    pub fn get(&self, name: &str) -> Option<Tensor> {
        match self.value(name)? {
            Value::Tensor(tensor) => Some(tensor.lock().clone()),
            Value::Dense(table) => {
                let values = table.read(<[f32]>::to_vec);
                Tensor::from_f32(&table.spec().shape, values).ok()
            }
            Value::Sparse(_) => None,
        }
    }

    /// Creates or replaces a value. Fails if a value of that name has other dimensions or another element type.
    pub fn set(&self, name: &str, value: Tensor) -> Result<()> {
        let mismatch = |got: String| Error::ScopeMismatch {
            name: name.to_owned(),
            expected: format!("a tensor of dimensions {:?}", value.dims()),
            got,
        };
        match self.value(name) {
            None => {
                self.values.write().insert(name.to_owned(), Value::Tensor(Arc::new(Mutex::new(value))));
            }
            Some(Value::Tensor(existing)) => {
                let mut existing = existing.lock();
                let same_kind = std::mem::discriminant(existing.elements()) == std::mem::discriminant(value.elements());
                if existing.dims() != value.dims() || !same_kind {
                    return Err(mismatch(format!("a tensor of dimensions {:?}", existing.dims())));
                }
                *existing = value;
            }
            Some(Value::Dense(table)) => match value.elements() {
                Elements::F32(values) if table.spec().shape == value.dims() => table.assign(values)?,
                _ => return Err(mismatch(format!("a parameter of dimensions {:?}", table.spec().shape))),
            },
            Some(Value::Sparse(table)) => set_rows(&table, &value)
                .unwrap_or_else(|| Err(mismatch(format!("a sparse table with rows of {} floats", table.dim()))))?,
        }
        Ok(())
    }

    /// The first `rows` rows of a sparse table as a tensor, with first values for ids that have no row yet. The table is created
    /// if there is none.
    pub fn table_values(&self, name: &str, spec: SparseSpec, rows: usize) -> Result<Tensor> {
        let table = self.sparse_or_create(name, spec, false)?;
        check_memory_for(name, &[rows, table.dim()], size_of::<f32>(), "")?;
        let keys: Vec<Key> = (0..rows as Key).collect();
        let mut values = vec![0.0; rows * table.dim()];
        table.pull(&keys, Missing::Initial, &mut values, &mut Scratch::default())?;
        Tensor::from_f32(&[rows, table.dim()], values)
    }

    /// Creates a value, or replaces whatever has that name, including optimizer state.
    pub fn replace(&self, name: &str, value: Tensor) {
        if self.values.write().insert(name.to_owned(), Value::Tensor(Arc::new(Mutex::new(value)))).is_some() {
            self.bump_generation();
        }
    }

    /// Removes a value, if there is one.
    pub fn remove(&self, name: &str) {
        if self.values.write().remove(name).is_some() {
            self.bump_generation();
        }
    }

    /// Removes all values.
    pub fn clear(&self) {
        self.values.write().clear();
        self.bump_generation();
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    fn bump_generation(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The sparse table under a name.
    pub fn sparse(&self, name: &str) -> Option<Arc<SparseTable>> {
        match self.value(name)? {
            Value::Sparse(table) => Some(table),
            _ => None,
        }
    }

    /// The dense table under a name; `None` until a program that trains it was compiled.
    pub fn dense(&self, name: &str) -> Option<Arc<DenseTable>> {
        match self.value(name)? {
            Value::Dense(table) => Some(table),
            _ => None,
        }
    }

    /// The state under a name, for ops that change it in place.
    pub(crate) fn state(&self, name: &str) -> Result<State> {
        match self.value(name) {
            Some(Value::Tensor(tensor)) => Ok(tensor),
            Some(_) => {
                Err(Error::ScopeMismatch { name: name.to_owned(), expected: "a tensor".into(), got: "a table".into() })
            }
            None => Err(Error::NotInitialized { name: name.to_owned() }),
        }
    }

    /// The sparse table under a name. If there is none, it is created with the rule of the program that trains it. A program that
    /// only reads accepts any rule.
    pub(crate) fn sparse_or_create(&self, name: &str, spec: SparseSpec, trains: bool) -> Result<Arc<SparseTable>> {
        let mut values = self.values.write();
        match values.get(name) {
            None => {
                let table = Arc::new(SparseTable::new(spec)?);
                values.insert(name.to_owned(), Value::Sparse(table.clone()));
                Ok(table)
            }
            Some(Value::Sparse(table)) => {
                let existing = table.spec();
                if existing.salted != spec.salted && !table.is_empty() {
                    let keys = |spec: &SparseSpec| if spec.salted { "ids salted by slot" } else { "plain ids" };
                    return Err(Error::ScopeMismatch {
                        name: name.to_owned(),
                        expected: format!("a sparse table whose keys are {}", keys(&spec)),
                        got: format!("a sparse table whose keys are {}", keys(existing)),
                    });
                }
                if existing.dim == spec.dim && existing.salted == spec.salted && (!trains || *existing == spec) {
                    return Ok(table.clone());
                }
                if existing.dim == spec.dim && table.is_empty() {
                    // A program that only reads came first and nothing is trained yet, so the rule of the training program
                    // applies.
                    let table = Arc::new(SparseTable::new(spec)?);
                    values.insert(name.to_owned(), Value::Sparse(table.clone()));
                    self.bump_generation();
                    return Ok(table);
                }
                Err(Error::ScopeMismatch {
                    name: name.to_owned(),
                    expected: format!("a sparse table of dim {} trained by {}", spec.dim, sparse_rule(&spec)),
                    got: format!("a sparse table of dim {} trained by {}", existing.dim, sparse_rule(existing)),
                })
            }
            Some(Value::Tensor(tensor)) => {
                // Rows that were set before the table existed.
                let tensor = tensor.clone();
                let (dim, table) = (spec.dim, Arc::new(SparseTable::new(spec)?));
                set_rows(&table, &tensor.lock()).unwrap_or_else(|| {
                    Err(Error::ScopeMismatch {
                        name: name.to_owned(),
                        expected: format!("a sparse table with rows of {dim} floats"),
                        got: format!("a tensor of dimensions {:?}", tensor.lock().dims()),
                    })
                })?;
                values.insert(name.to_owned(), Value::Sparse(table.clone()));
                Ok(table)
            }
            Some(Value::Dense(_)) => Err(Error::ScopeMismatch {
                name: name.to_owned(),
                expected: "a sparse table".into(),
                got: "a parameter".into(),
            }),
        }
    }

    /// The dense table of a parameter. A tensor from the startup program is turned into a table.
    pub(crate) fn dense_or_promote(&self, name: &str, spec: DenseSpec, trains: bool) -> Result<Arc<DenseTable>> {
        let mut values = self.values.write();
        let mismatch = |got: String| Error::ScopeMismatch {
            name: name.to_owned(),
            expected: format!("a parameter of dimensions {:?}", spec.shape),
            got,
        };
        let table = match values.get(name) {
            None => return Err(Error::NotInitialized { name: name.to_owned() }),
            Some(Value::Sparse(_)) => return Err(mismatch("a sparse table".into())),
            Some(Value::Dense(table)) if !trains || *table.spec() == spec => {
                return if table.spec().shape == spec.shape {
                    Ok(table.clone())
                } else {
                    Err(mismatch(format!("a parameter of dimensions {:?}", table.spec().shape)))
                };
            }
            Some(Value::Dense(table)) if table.step() == 0 => {
                // A program that only reads came first and nothing is trained yet, so the rule of the training program applies.
                let copy = DenseTable::new(spec.clone())?;
                if table.spec().shape != spec.shape {
                    return Err(mismatch(format!("a parameter of dimensions {:?}", table.spec().shape)));
                }
                copy.assign(&table.read(<[f32]>::to_vec))?;
                self.bump_generation();
                Arc::new(copy)
            }
            Some(Value::Dense(table)) if table.spec().shape != spec.shape => {
                return Err(mismatch(format!("a parameter of dimensions {:?}", table.spec().shape)));
            }
            Some(Value::Dense(table)) => {
                return Err(Error::ScopeMismatch {
                    name: name.to_owned(),
                    expected: format!("a parameter trained by {}", dense_rule(&spec)),
                    got: format!("a parameter trained by {}", dense_rule(table.spec())),
                });
            }
            Some(Value::Tensor(tensor)) => {
                let tensor = tensor.lock();
                let Some(first) = tensor.f32s().filter(|_| tensor.dims() == spec.shape) else {
                    return Err(mismatch(format!("a tensor of dimensions {:?}", tensor.dims())));
                };
                let floats = size_of::<f32>() * (1 + spec.optimizer.state_slots());
                check_memory_for(name, &spec.shape, floats, "with the optimizer's state its ")?;
                let table = DenseTable::new(spec)?;
                table.assign(first)?;
                Arc::new(table)
            }
        };
        values.insert(name.to_owned(), Value::Dense(table.clone()));
        Ok(table)
    }

    /// Stores a sparse table in place of whatever had that name.
    pub(crate) fn put_sparse(&self, name: &str, table: SparseTable) {
        self.values.write().insert(name.to_owned(), Value::Sparse(Arc::new(table)));
        self.bump_generation();
    }

    /// Stores a dense table in place of whatever had that name.
    pub(crate) fn put_dense(&self, name: &str, table: DenseTable) {
        self.values.write().insert(name.to_owned(), Value::Dense(Arc::new(table)));
        self.bump_generation();
    }

    fn value(&self, name: &str) -> Option<Value> {
        self.values.read().get(name).cloned()
    }
}

/// Sets row i of a table to row i of a tensor; `None` if the tensor does not have rows of the table's size.
fn set_rows(table: &SparseTable, tensor: &Tensor) -> Option<Result<()>> {
    let &[rows, dim] = tensor.dims() else { return None };
    let values = tensor.f32s().filter(|_| dim == table.dim() && !table.spec().salted)?;
    let keys: Vec<Key> = (0..rows as Key).collect();
    Some(table.put(&keys, values, Existing::Replace, &mut Scratch::default()).map_err(Error::from))
}

/// How a dense parameter is trained, as text: everything that must agree between two programs that train it.
pub(crate) fn dense_rule(DenseSpec { optimizer, schedule, regularizer, .. }: &DenseSpec) -> String {
    format!("{optimizer:?}, rate {schedule:?}, decay {regularizer:?}")
}

/// How a sparse table is trained, as text.
pub(crate) fn sparse_rule(
    SparseSpec { optimizer, schedule, regularizer, initializer, seed, storage, .. }: &SparseSpec,
) -> String {
    let first = format!("first values {initializer:?} of seed {seed}, stored as {}", storage.name());
    format!("{optimizer:?}, rate {schedule:?}, decay {regularizer:?}, {first}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::DType;

    fn floats(values: &[f32]) -> Tensor {
        Tensor::from_f32(&[values.len()], values.to_vec()).unwrap()
    }

    #[test]
    fn set_keeps_dimensions_and_kind_and_replace_does_not() {
        let scope = Scope::new();
        scope.set("x", floats(&[1.0, 2.0])).unwrap();
        scope.set("x", floats(&[3.0, 4.0])).unwrap();
        let error = scope.set("x", floats(&[1.0])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`x` is a tensor of dimensions [2] in the scope, expected a tensor of dimensions [1]"
        );
        assert!(scope.set("x", Tensor::zeros(&[2], DType::I64)).is_err());
        assert_eq!(scope.get("x").unwrap(), floats(&[3.0, 4.0]), "what was refused changed nothing");
        scope.replace("x", floats(&[1.0]));
        assert_eq!(scope.get("x").unwrap(), floats(&[1.0]));
        assert_eq!((scope.names(), scope.get("y")), (vec!["x".to_owned()], None));
    }

    #[test]
    fn the_generation_changes_when_an_object_is_replaced_and_not_when_a_value_changes() {
        let scope = Scope::new();
        scope.set("x", floats(&[1.0])).unwrap();
        let first = scope.generation();
        scope.set("x", floats(&[2.0])).unwrap();
        scope.remove("y");
        assert_eq!(scope.generation(), first);
        scope.replace("x", floats(&[3.0]));
        let replaced = scope.generation();
        scope.remove("x");
        assert!(first < replaced && replaced < scope.generation());
    }
}
