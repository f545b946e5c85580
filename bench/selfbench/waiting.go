package selfbench

// The kinds of Waiting.
const (
	WaitingVoid  = "in the void network"
	WaitingFresh = "with a network of its own"
)

// Waiting is the memory of waiting cells: the growth of the whole system's memory with them.
// Other allocations in the meantime count as well.
type Waiting struct {
	Kind   string  `json:"kind"`
	Cells  int     `json:"cells"`
	Each   float64 `json:"each_kb"`   // all of it, per cell
	Slab   int64   `json:"slab_kb"`   // objects of the kernel, percpu included
	Stacks int64   `json:"stacks_kb"` // kernel stacks and page tables
	Other  int64   `json:"other_kb"`  // anonymous and shared memory
}
