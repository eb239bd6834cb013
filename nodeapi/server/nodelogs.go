package server

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os/exec"
	"path"
	"strings"
	"time"
)

// nodeLogTimeout limits the time to answer a query of node logs.
const nodeLogTimeout = 30 * time.Second

// nodeLogs serves the logs of the node: the answer to a query, or a file below /var/log.
func (s *server) nodeLogs(w http.ResponseWriter, r *http.Request) {
	if s.h.Journal == "" {
		s.hostLogs(w, r)
		return
	}
	q, errs := parseNodeLogQuery(r.URL.Query())
	switch {
	case len(errs) > 0:
		http.Error(w, errs.ToAggregate().Error(), http.StatusBadRequest)
		return
	case q == nil:
		s.hostLogs(w, r)
		return
	case r.PathValue("path") != "":
		http.Error(w, "path not allowed in query mode", http.StatusNotAcceptable)
		return
	}
	if errs := q.validate(); len(errs) > 0 {
		http.Error(w, errs.ToAggregate().Error(), http.StatusNotAcceptable)
		return
	}
	if len(q.Files) == 1 {
		file := r.Clone(r.Context())
		file.URL.Path = path.Join("/logs/", path.Clean("/"+strings.ReplaceAll(q.Files[0], `\`, "/")))
		s.hostLogs(w, file)
		return
	}
	s.queryNodeLogs(w, r, q)
}

// queryNodeLogs writes the logs of services. Errors are lines of the response, as upstream.
func (s *server) queryNodeLogs(w http.ResponseWriter, r *http.Request, q *nodeLogQuery) {
	ctx, cancel := context.WithTimeout(r.Context(), nodeLogTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain;charset=UTF-8")
	var out io.Writer = w
	if r.Header.Get("Accept-Encoding") == "gzip" {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		defer func() { _ = z.Close() }() // fails only if the client is disconnected
		out = z
	}
	units := s.journalUnits(ctx)
	var inJournal, inFiles []string
	for _, name := range q.Services {
		if units[name+".service"] {
			inJournal = append(inJournal, name)
		} else {
			inFiles = append(inFiles, name)
		}
	}
	if len(inJournal) > 0 {
		s.copyJournal(ctx, out, q.journalArgs(inJournal))
	}
	if len(inFiles) > 0 && q.options() {
		_, _ = fmt.Fprintf(out, "\noptions present and query resolved to log files for %v\n"+
			"try without specifying options\n", inFiles)
		return
	}
	for _, name := range inFiles {
		if err := s.copyLogFile(ctx, out, name); errors.Is(err, fs.ErrNotExist) {
			_, _ = fmt.Fprintf(out, "\nlog not found for %s\n", name)
		} else if err != nil {
			_, _ = fmt.Fprintf(out, "\nerror getting log for %s: %v\n", name, err)
		}
	}
}

// journalUnits returns the systemd units that have entries in the journal. Without a journal there are
// none.
func (s *server) journalUnits(ctx context.Context) map[string]bool {
	out, err := exec.CommandContext(ctx, s.h.Journal, "--field", "_SYSTEMD_UNIT").Output()
	if err != nil {
		s.Log.Debug("journal unavailable", "err", err)
		return nil
	}
	units := map[string]bool{}
	for unit := range bytes.Lines(out) {
		units[string(bytes.TrimSpace(unit))] = true
	}
	return units
}

// copyJournal writes the output of journalctl. It exits with an error if no entry matches.
func (s *server) copyJournal(ctx context.Context, out io.Writer, args []string) {
	cmd := exec.CommandContext(ctx, s.h.Journal, args...) //nolint:gosec // no shell, and validate checks the query
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		_, _ = io.WriteString(out, "\nerror: journal output not available\n")
		s.Log.Warn("journal query failed", "err", err)
	}
}

// copyLogFile writes the log file of a service: service, service.log or service/service.log in the
// directory of the host's logs.
func (s *server) copyLogFile(ctx context.Context, out io.Writer, service string) error {
	dir, err := openLogDir(s.h.SystemLogDir)
	if err != nil {
		return err
	}
	defer func() { _ = dir.root.Close() }()
	for _, name := range []string{service, service + ".log", service + "/" + service + ".log"} {
		file, err := dir.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		st, err := file.Stat()
		if err != nil || st.IsDir() {
			_ = file.Close()
			continue
		}
		stop := context.AfterFunc(ctx, func() { _ = file.Close() })
		_, err = io.Copy(out, file)
		if stop() {
			_ = file.Close()
		}
		return err
	}
	return fs.ErrNotExist
}
