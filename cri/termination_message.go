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

// Limits of the termination message, as documented by Kubernetes.
const (
	maxTerminationMessage = 4096
	maxLogMessage         = 2048
	maxLogLines           = 80
)

// terminationMessage returns the message of an exited container: the message of the runtime,
// followed by the content of the termination message file or, if the policy says so, the end of the
// log.
func terminationMessage(ctx context.Context, s *runtimeapi.ContainerStatus, own criconfig.ContainerLabels) string {
	parts := make([]string, 0, 2)
	if s.Message != "" {
		parts = append(parts, s.Message)
	}
	text := ""
	for _, m := range s.Mounts {
		if own.TerminationMessagePath != "" && m.ContainerPath == own.TerminationMessagePath {
			text = string(readFileEnd(m.HostPath, maxTerminationMessage))
			break
		}
	}
	if text == "" && s.ExitCode != 0 && own.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		// The log is the last resort: an unreadable one is ignored.
		last, _ := crilog.LastLines(ctx, s.LogPath, maxLogLines, maxLogMessage)
		text = string(last)
	}
	if text != "" {
		parts = append(parts, text)
	}
	message := strings.ToValidUTF8(strings.Join(parts, ": "), "")
	if len(message) > maxTerminationMessage {
		message = strings.ToValidUTF8(message[len(message)-maxTerminationMessage:], "")
	}
	return message
}

// readFileEnd returns at most the last n bytes of a regular file, and nothing if it is not a
// regular file or cannot be read. The container may have created anything at this path.
func readFileEnd(path string, n int64) []byte {
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
