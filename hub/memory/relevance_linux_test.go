package memory

import (
	"cmp"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/agentloop/provider/wordhash"
	"palyra/hub/store"
	"palyra/internal/toolproto"
)

// TestRelevance: 200 questions about 600 paragraphs of the documents as they were, each written for
// one of them. The fused order finds it no worse than its lexical part, than vectors alone, and than
// SQLite's FTS5, by the mean reciprocal rank of the first ten. -v prints the numbers.
func TestRelevance(t *testing.T) {
	paragraphs, queries := lines(t, "paragraphs.txt"), lines(t, "queries.txt")
	if len(paragraphs) != 600 || len(queries) != 200 {
		t.Fatalf("%d paragraphs, %d queries", len(paragraphs), len(queries))
	}
	now := time.Unix(1800000000, 0)
	b := newBook()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each has a database of its own
	if _, err := db.Exec("CREATE VIRTUAL TABLE items USING fts5(text)"); err != nil {
		t.Fatal(err)
	}
	for i, p := range paragraphs {
		b.add(&store.Memory{N: int64(i + 1), ID: p.id, Source: toolproto.SourceImport, Created: now}, &toolproto.Memory{Text: p.text, Confidence: 100}, nil)
		if _, err := db.Exec("INSERT INTO items (rowid, text) VALUES (?, ?)", i, p.text); err != nil {
			t.Fatal(err)
		}
	}
	fused := func(weights [2]float64) func(string) []string {
		return func(q string) (ids []string) {
			for _, h := range b.search(ask{query: q, now: now, weights: weights}, 10) {
				ids = append(ids, b.docs[h.doc].id)
			}
			return ids
		}
	}
	ways := []struct {
		name string
		find func(string) []string
	}{
		{"fused", fused([2]float64{1, 1})},
		{"lexical alone", fused([2]float64{1, 0})},
		{"FTS5 alone", func(q string) (ids []string) {
			rows, err := db.Query("SELECT rowid FROM items WHERE items MATCH ? ORDER BY bm25(items), rowid LIMIT 10", `"`+strings.Join(wordhash.Words(q), `" OR "`)+`"`)
			if err != nil {
				t.Fatal(err)
			}
			defer rows.Close()
			for rows.Next() {
				var n int
				if err := rows.Scan(&n); err != nil {
					t.Fatal(err)
				}
				ids = append(ids, paragraphs[n].id)
			}
			if err := rows.Err(); err != nil {
				t.Fatal(err)
			}
			return ids
		}},
		{"vectors alone", func(q string) (ids []string) {
			v := embed(wordhash.Words(q))
			all := make([]int, len(b.docs))
			for i := range all {
				all[i] = i
			}
			slices.SortStableFunc(all, func(i, j int) int { return cmp.Compare(v.likeness(&b.docs[j].vector), v.likeness(&b.docs[i].vector)) })
			for _, i := range all[:10] {
				ids = append(ids, b.docs[i].id)
			}
			return ids
		}},
	}
	var mean [4]float64
	for w, way := range ways {
		first, ten := 0, 0
		for _, q := range queries {
			at := slices.Index(way.find(q.text), q.id)
			if at == 0 {
				first++
			}
			if at >= 0 {
				ten++
				mean[w] += 1 / float64(at+1) / float64(len(queries))
			}
		}
		t.Logf("%-14s first %d, among ten %d of %d, mean reciprocal rank %.3f", way.name, first, ten, len(queries), mean[w])
	}
	for w := range ways {
		if mean[0] < mean[w] {
			t.Errorf("fused has %.3f, %s %.3f", mean[0], ways[w].name, mean[w])
		}
	}
	if a, again := fmt.Sprint(ways[0].find(queries[3].text)), fmt.Sprint(ways[0].find(queries[3].text)); a != again {
		t.Errorf("%s, then %s", a, again)
	}
}

type line struct{ id, text string }

func lines(t *testing.T, name string) (out []line) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for l := range strings.Lines(string(text)) {
		id, rest, ok := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		if !ok {
			t.Fatalf("%s: %q", name, l)
		}
		out = append(out, line{id, rest})
	}
	return out
}
