//! Runs a function on a private stack. A forked child needs its stack from its first instruction
//! on, before any handler can give it a copy of shared memory. So a fork from a stack in shared
//! memory, such as a coroutine's that `malloc` has made, runs on another stack. It returns to the
//! caller's when the child has its copy. The principal function is [`on_private`].

use crate::choice::PAGE;
use crate::front::{may_hold, memory};
use crate::pages;

/// The size of the stack. The handlers of the program run on it, too.
const SIZE: usize = 1 << 20;

/// A function to run, and its result.
struct Task<F, R> {
    work: Option<F>,
    result: Option<R>,
}

/// Runs a function whose child process must have its stack at once. `None`: there is no room.
///
/// Until the child has its copy, the function must not use memory of its caller, except what it has
/// captured by value.
pub(crate) fn on_private<R>(work: impl FnOnce() -> R) -> Option<R> {
    if !is_shared() {
        return Some(work());
    }
    let bottom = pages::map_unreserved(SIZE).ok()?;
    pages::protect(bottom, PAGE, 0);
    let mut task = Task { work: Some(work), result: None };
    call(&mut task, bottom + SIZE);
    // The child has a copy of this stack.
    pages::unmap(&(bottom..bottom + SIZE));
    task.result
}

/// Whether the caller's stack is shared memory.
fn is_shared() -> bool {
    let here = 0_u8;
    let here = (&raw const here).addr();
    let span = here / PAGE * PAGE..here + 1;
    may_hold(&span) && memory().table.first(&span).is_some_and(|piece| piece.file.is_some())
}

/// Runs a task on the stack that ends at `top`.
fn call<F: FnOnce() -> R, R>(task: &mut Task<F, R>, top: usize) {
    // SAFETY: the stack belongs to this call alone, and `top` is a multiple of 16. The old stack
    // pointer is in a register that a C function preserves.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {run}",
            "mov rsp, r12",
            top = in(reg) top,
            run = in(reg) run::<F, R> as extern "C" fn(*mut Task<F, R>),
            in("rdi") std::ptr::from_mut(task),
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// The first function on the private stack.
extern "C" fn run<F: FnOnce() -> R, R>(task: *mut Task<F, R>) {
    // SAFETY: the task is the caller's, who waits. The function is moved to this stack.
    if let Some(work) = unsafe { (*task).work.take() } {
        let result = work();
        // SAFETY: as above. In a child, the caller's stack is a copy by now.
        unsafe { (*task).result = Some(result) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_runs_on_the_other_stack_and_returns_its_result() {
        let bottom = pages::map_unreserved(SIZE).expect("memory");
        let number = 41;
        let work = || {
            let local = [number; 1000];
            ((&raw const local).addr(), local.iter().sum::<usize>())
        };
        let mut task = Task { work: Some(work), result: None };
        call(&mut task, bottom + SIZE);
        let (address, sum) = task.result.expect("a result");
        assert!((bottom..bottom + SIZE).contains(&address));
        assert_eq!(sum, 41_000);
        pages::unmap(&(bottom..bottom + SIZE));
    }
}
