package volumes

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
)

const (
	hostsHeader     = "# Kubernetes-managed hosts file.\n"
	hostsHeaderHost = "# Kubernetes-managed hosts file (host network).\n"
	hostsLocal      = "127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n"
)

// writeHosts updates the pod's hosts file and returns its path. It writes in place, because running
// containers have mounted the file.
func (v *Volumes) writeHosts(pod *corev1.Pod, ips []string) (string, error) {
	var text []byte
	if pod.Spec.HostNetwork {
		host, err := os.ReadFile(v.HostsFile)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
		text = hostNetworkHosts(host, pod.Spec.HostAliases)
	} else {
		name, domain := v.hostname(pod)
		text = podHosts(ips, name, domain, pod.Spec.HostAliases)
	}
	path := v.hostsPath(pod.UID)
	if err := v.requireOwn(pod.UID); err != nil {
		return "", err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o644)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if old, err := io.ReadAll(f); err == nil && bytes.Equal(old, text) {
		return path, nil
	}
	if _, err := f.WriteAt(text, 0); err != nil {
		return "", err
	}
	return path, errors.Join(f.Truncate(int64(len(text))), f.Chmod(0o644))
}

func (v *Volumes) hostname(pod *corev1.Pod) (name, domain string) {
	if v.Hostname != nil {
		return v.Hostname(pod)
	}
	if pod.Spec.Hostname != "" {
		return pod.Spec.Hostname, ""
	}
	return pod.Name, ""
}

// podHosts returns the hosts file of a pod with its own network namespace.
func podHosts(ips []string, name, domain string, aliases []corev1.HostAlias) []byte {
	var b bytes.Buffer
	b.WriteString(hostsHeader + hostsLocal)
	for _, ip := range ips {
		b.WriteString(ip + "\t")
		if domain != "" {
			b.WriteString(name + "." + domain + "\t")
		}
		b.WriteString(name + "\n")
	}
	writeAliases(&b, aliases)
	return b.Bytes()
}

// hostNetworkHosts returns the host's file with the pod's aliases.
func hostNetworkHosts(host []byte, aliases []corev1.HostAlias) []byte {
	var b bytes.Buffer
	b.WriteString(hostsHeaderHost)
	b.Write(host)
	if len(host) > 0 && host[len(host)-1] != '\n' {
		b.WriteByte('\n')
	}
	writeAliases(&b, aliases)
	return b.Bytes()
}

func writeAliases(b *bytes.Buffer, aliases []corev1.HostAlias) {
	if len(aliases) == 0 {
		return
	}
	b.WriteString("\n# Entries added by HostAliases.\n")
	for _, a := range aliases {
		b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
	}
}
