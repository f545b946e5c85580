package hub

import (
	"time"

	"palyra/internal/canon"
)

// The operations of memory. Each but GetMemory makes one call of a tool for memory, about the
// caller's own items alone, which policy decides and a receipt attests. Texts travel beside the
// call, so no tape has them. Whoever may do these speaks as a person: an agent gets the tools.

// MemoryItem is what a principal had remembered.
type MemoryItem struct {
	ID         string       `json:"id"`                // mem_…
	Scope      string       `json:"scope"`             // principal, or session: it answers in that one alone, and goes with it
	Session    string       `json:"session,omitempty"` // that it was made in, where one is known
	Source     string       `json:"source"`            // who wrote it: person, import or agent
	Origins    []string     `json:"origins"`           // of what it was made of, as a session's label has them
	Tags       []string     `json:"tags"`
	Confidence int64        `json:"confidence"` // per cent
	Created    time.Time    `json:"created"`
	Expires    *time.Time   `json:"expires"`         // null: never
	Digest     canon.Digest `json:"digest"`          // of the sealed item
	Text       string       `json:"text"`            // of results of a search and a list
	Score      *MemoryScore `json:"score,omitempty"` // of a search
}

// MemoryScore says why an item was found, in thousandths. Total is the sum of the rest.
type MemoryScore struct {
	Total   int64 `json:"total"`
	Lexical int64 `json:"lexical"` // words in common, of 490
	Vector  int64 `json:"vector"`  // likeness of vectors, of 320
	Recency int64 `json:"recency"` // of 70
	Quality int64 `json:"quality"` // who wrote it, and how sure of it, of 120
	// Embedding says of which vectors, where a provider's are configured: the model's, or
	// hash-embedding-v1 and why.
	Embedding string `json:"embedding,omitempty"`
}

// MemoryResult is what a call of a tool for memory did. Run has its one step: how the call was
// decided, how it ended, and where its receipt is. The rest is empty unless it was executed.
type MemoryResult struct {
	Run   Run          `json:"run"`
	Items []MemoryItem `json:"items"`
	Count int64        `json:"count"`          // of items found, stored or forgotten
	Next  int64        `json:"next,omitempty"` // of a list: before of the next page
}

// MemorySearch looks for items by words.
type MemorySearch struct {
	Session string `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Query   string `json:"query" doc:"1 to 4096 characters"`
	Limit   int64  `json:"limit,omitempty" doc:"1 to 64; default: 8"`
	Of      string `json:"of,omitempty" doc:"a session whose own items are searched, too"`
}

// MemoryQuery says which items are listed, newest first.
type MemoryQuery struct {
	Session string   `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	IDs     []string `json:"ids,omitempty" doc:"at most 64; default: all"`
	Before  int64    `json:"before,omitempty" doc:"next of the page before"`
	Limit   int64    `json:"limit,omitempty" doc:"1 to 256; default: 32. A page ends with a mebibyte, too"`
}

// MemoryAdd has items to remember.
type MemoryAdd struct {
	Session string          `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	Import  bool            `json:"import,omitempty" doc:"they come from a file: their source is import"`
	Items   []NewMemoryItem `json:"items" doc:"1 to 64"`
}

// NewMemoryItem is one of them.
type NewMemoryItem struct {
	Text       string   `json:"text" doc:"1 to 16384 bytes"`
	Tags       []string `json:"tags,omitempty" doc:"at most 16"`
	Confidence *int64   `json:"confidence,omitempty" doc:"per cent; default: 100"`
	Expires    string   `json:"expires,omitempty" doc:"time in RFC 3339 from which on it isn't found; default: never"`
	Of         string   `json:"of,omitempty" doc:"a session that it's for alone; default: each of the caller's"`
	Origins    []string `json:"origins,omitempty" doc:"of what it was made of, beside person"`
}

// MemoryForget says what is forgotten. It has one of its members.
type MemoryForget struct {
	Session string   `json:"session,omitempty" doc:"in which the call is made; default: one of its own"`
	IDs     []string `json:"ids,omitempty" doc:"at most 64"`
	Origin  string   `json:"origin,omitempty" doc:"what was made of something with this origin: web"`
	Of      string   `json:"of,omitempty" doc:"what was made in this session"`
	All     bool     `json:"all,omitempty" doc:"everything"`
}

// MemoryState says how much the caller has remembered.
type MemoryState struct {
	Items     int64  `json:"items"`
	Bytes     int64  `json:"bytes"` // sealed
	MaxItems  int64  `json:"max_items"`
	MaxBytes  int64  `json:"max_bytes"`
	Embedding string `json:"embedding"` // how vectors are made; hash-embedding-v1 knows no meanings
}

// Memory.
var (
	SearchMemory = define[MemorySearch, MemoryResult]("memory.searchMemory", "POST /memory/search", "memory.manage",
		"Find what was remembered, by words", Operation{Doc: memoryDoc, Effect: Begins})
	ListMemory = define[MemoryQuery, MemoryResult]("memory.listMemory", "POST /memory/list", "memory.manage",
		"List what was remembered, newest first", Operation{Doc: memoryDoc, Effect: Begins})
	AddMemory = define[MemoryAdd, MemoryResult]("memory.addMemory", "POST /memory/add", "memory.manage",
		"Remember texts that a person wrote, all or none", Operation{Doc: memoryDoc, Effect: Begins, Body: 3 << 20})
	ForgetMemory = define[MemoryForget, MemoryResult]("memory.forgetMemory", "POST /memory/forget", "memory.manage",
		"Forget items for good", Operation{Doc: memoryDoc, Effect: Begins})
	GetMemory = define[None, MemoryState]("memory.getMemory", "GET /memory", "memory.manage",
		"Get how much is remembered")
)

const memoryDoc = "One call of a tool for memory, about the caller's own items. The answer waits for it, as that of a call does, and the client's leaving cancels it."

// memoryOperations returns those of memory.
func memoryOperations() []*Operation {
	return []*Operation{SearchMemory.Operation, ListMemory.Operation, AddMemory.Operation, ForgetMemory.Operation, GetMemory.Operation}
}
