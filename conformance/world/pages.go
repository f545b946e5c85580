package world

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// pages are the answers of servers that mean no good to a client.
func pages(mux *http.ServeMux) {
	// N redirects to itself, then a page.
	mux.HandleFunc("/hops/{n}", func(out http.ResponseWriter, r *http.Request) {
		if n, _ := strconv.Atoi(r.PathValue("n")); n > 0 {
			http.Redirect(out, r, fmt.Sprintf("/hops/%d", n-1), http.StatusFound)
			return
		}
		io.WriteString(out, "arrived\n")
	})
	// 307, which wants the body sent again.
	mux.HandleFunc("/again", func(out http.ResponseWriter, r *http.Request) {
		http.Redirect(out, r, "/sum", http.StatusTemporaryRedirect)
	})
	// Text without an end.
	mux.HandleFunc("/stories", func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for {
			if _, err := io.WriteString(flushing{out}, "and then "); err != nil {
				return
			}
		}
	})
	// A head, and no body until the client leaves.
	mux.HandleFunc("/tomorrow", func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/plain")
		out.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	// 1 GiB of zeros in a megabyte.
	mux.HandleFunc("/bomb", func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/plain")
		out.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(out)
		if _, err := io.CopyN(z, zeros{}, 1<<30); err == nil {
			z.Close()
		}
	})
	// What the client sent.
	mux.HandleFunc("/echo", func(out http.ResponseWriter, r *http.Request) {
		out.Header().Set("Content-Type", "text/plain")
		r.Write(out)
	})
}
