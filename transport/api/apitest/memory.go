package apitest

import (
	"context"
	"time"

	"palyra/hub"
)

// MemoryID is the one item of a Hub's memory, and MemoryText what it says.
const (
	MemoryID   = "mem_0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a"
	MemoryText = "Releases are built by make dist."
)

// memoryEntries returns the operations of memory.
func (h *Hub) memoryEntries() []hub.Entry {
	return []hub.Entry{
		hub.SearchMemory.By(func(_ context.Context, c hub.Caller, _ hub.MemorySearch) (hub.MemoryResult, error) {
			r := memoryResult(c)
			r.Items[0].Score = &hub.MemoryScore{Total: 612, Lexical: 300, Vector: 130, Recency: 70, Quality: 112}
			return r, nil
		}),
		hub.ListMemory.By(func(_ context.Context, c hub.Caller, _ hub.MemoryQuery) (hub.MemoryResult, error) {
			return memoryResult(c), nil
		}),
		hub.AddMemory.By(func(_ context.Context, c hub.Caller, _ hub.MemoryAdd) (hub.MemoryResult, error) {
			return memoryResult(c), nil
		}),
		hub.ForgetMemory.By(func(_ context.Context, c hub.Caller, _ hub.MemoryForget) (hub.MemoryResult, error) {
			r := memoryResult(c)
			r.Items = []hub.MemoryItem{}
			return r, nil
		}),
		hub.GetMemory.By(func(context.Context, hub.Caller, hub.None) (hub.MemoryState, error) {
			return hub.MemoryState{Items: 1, Bytes: 600, MaxItems: 10000, MaxBytes: 16 << 20, Embedding: "hash-embedding-v1"}, nil
		}),
	}
}

// memoryResult is that of a call, as vaultResult.
func memoryResult(c hub.Caller) hub.MemoryResult {
	run := vaultResult(c).Run
	run.Steps[0].Tool = "memory.search"
	return hub.MemoryResult{Run: run, Count: 1, Items: []hub.MemoryItem{{ID: MemoryID, Scope: "principal", Source: "person", Origins: []string{"person"}, Tags: []string{"release"},
		Confidence: 100, Created: time.Unix(1e9, 0).UTC(), Text: MemoryText}}}
}
