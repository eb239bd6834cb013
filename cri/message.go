package cri

import (
	"context"
	"os"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/cri/criconfig"
	"berth/cri/crilog"
)

// Bounds of the termination message, as Kubernetes documents them.
const (
	maxMessageFile = 4096
	maxLogMessage  = 2048
	maxLogLines    = 80
)

// exitMessage is what an ended container leaves to be read: what the runtime
// says of its end, then what the container wrote to its termination message
// file, or the end of its log where the policy says so.
func exitMessage(ctx context.Context, s *runtimeapi.ContainerStatus, own criconfig.ContainerLabels) string {
	parts := make([]string, 0, 2)
	if s.Message != "" {
		parts = append(parts, s.Message)
	}
	said := ""
	for _, m := range s.Mounts {
		if own.TerminationMessagePath != "" && m.ContainerPath == own.TerminationMessagePath {
			said = string(fileEnd(m.HostPath, maxMessageFile))
			break
		}
	}
	if said == "" && s.ExitCode != 0 && own.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		// A log that cannot be read is no message; it was the last resort.
		last, _ := crilog.LastLines(ctx, s.LogPath, maxLogLines, maxLogMessage)
		said = string(last)
	}
	if said != "" {
		parts = append(parts, said)
	}
	text := strings.ToValidUTF8(strings.Join(parts, ": "), "")
	if len(text) > maxMessageFile {
		text = strings.ToValidUTF8(text[len(text)-maxMessageFile:], "")
	}
	return text
}

// fileEnd returns at most the last n bytes of a regular file, nothing of any
// other or if it cannot be read. The container may have written anything there.
func fileEnd(path string, n int64) []byte {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return nil
	}
	end := make([]byte, min(n, info.Size()))
	got, _ := f.ReadAt(end, info.Size()-int64(len(end)))
	return end[:got]
}
