package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

func configMap(name, data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: NS}\ndata: {%s}\n", name, data)
}

func secretOf(name, data string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: NS}\nstringData: {%s}\n", name,
		data)
}

func TestEmptyDirOnDiskAndInMemory(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		mounts := "volumeMounts: [{name: disk, mountPath: /disk}, {name: mem, mountPath: /mem}]"
		s.Pod("empty", `
			volumes:
			- {name: disk, emptyDir: {}}
			- {name: mem, emptyDir: {medium: Memory, sizeLimit: 4Mi}}
			containers:
			`+box("writes", mounts, "write /disk/a shared", "stat /disk /mem", "mounts", end, "sleep")+`
			`+sh("fills", mounts, "until [ -e /disk/a ]; do sleep 0.05; done; cat /disk/a; "+
			"dd if=/dev/zero of=/mem/x bs=1M count=8 2>&1; echo --end--; sleep 1000"))
		log := s.WaitOutput("empty", "writes")
		s.contains("stat", log, "/disk drwxrwxrwx 0:0", "/mem drwxrwxrwx 0:0")
		for line := range strings.Lines(log) {
			if f := strings.Fields(line); len(f) > 8 && f[4] == "/mem" && !strings.Contains(line, "tmpfs") {
				t.Errorf("/mem is not a tmpfs: %s", line)
			}
		}
		s.contains("the other container", s.WaitOutput("empty", "fills"), "shared", "No space left on device")
		p := s.Running("empty")
		dir := filepath.Join(s.Agent.RootDir, "pods", string(p.UID), "volumes", "kubernetes.io~empty-dir")
		if readFile(t, filepath.Join(dir, "disk", "a")) != "shared" {
			t.Error("the volume is not in the kubelet's directory")
		}
		s.Remove("empty")
		s.WaitDeleted("empty")
		if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil ||
			strings.Contains(string(mounts), string(p.UID)) {
			t.Errorf("mounts of the pod remain (%v)", err)
		}
	})
}

func TestHostPathTypes(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		if err := os.WriteFile(dir+"/file", []byte("of the host"), 0o644); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", dir+"/sock")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		paths := map[string]string{"": "/file", "File": "/file", "Directory": "", "DirectoryOrCreate": "/new/deep",
			"FileOrCreate": "/made", "Socket": "/sock", "CharDevice": "//dev/null"}
		var volumes, mounts strings.Builder
		i := 0
		for kind, path := range paths {
			at := dir + path
			if strings.HasPrefix(path, "//") {
				at = path[1:]
			}
			fmt.Fprintf(&volumes, "- {name: v%d, hostPath: {path: %s, type: %q}}\n", i, at, kind)
			fmt.Fprintf(&mounts, "{name: v%d, mountPath: /v/%d}, ", i, i)
			i++
		}
		s.Pod("good", "volumes:\n"+volumes.String()+"containers:\n"+box("c", "volumeMounts: ["+mounts.String()+"]",
			"ls /v", end, "sleep"))
		s.WaitOutput("good", "c")
		if fi, err := os.Stat(dir + "/new/deep"); err != nil || !fi.IsDir() || fi.Mode().Perm() != 0o755 {
			t.Errorf("DirectoryOrCreate: %v %v", fi, err)
		}
		if fi, err := os.Stat(dir + "/made"); err != nil || !fi.Mode().IsRegular() {
			t.Errorf("FileOrCreate: %v %v", fi, err)
		}
		// A missing path blocks the pod and is reported. The pod starts when the path exists.
		s.Pod("late", "volumes: [{name: v, hostPath: {path: "+dir+"/later, type: Directory}}]\ncontainers:\n"+
			box("c", "volumeMounts: [{name: v, mountPath: /v}]", "sleep"))
		e := s.Event("late", "FailedMount: ")
		s.contains("the event", e, dir+"/later", "v")
		s.waitWhy("late", dir+"/later")
		if err := os.Mkdir(dir+"/later", 0o755); err != nil {
			t.Fatal(err)
		}
		s.Running("late")
	})
}

func TestContentVolumes(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Put("objects", configMap("cm", "a: alpha, b: beta")+"---\n"+secretOf("sec", "key: hidden"))
		s.Put("pod", podYAML("content", "labels: {app: x}\nannotations: {note: 'hello'}", `
			volumes:
			- {name: cm, configMap: {name: cm, defaultMode: 0440}}
			- {name: item, configMap: {name: cm, items: [{key: b, path: deep/er, mode: 0400}]}}
			- {name: sec, secret: {secretName: sec}}
			- {name: none, secret: {secretName: missing, optional: true}}
			- {name: info, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}},
			   {path: name, fieldRef: {fieldPath: metadata.name}},
			   {path: cpu, resourceFieldRef: {containerName: c, resource: limits.cpu, divisor: 1m}}]}}
			- name: all
			  projected:
			    sources:
			    - {configMap: {name: cm, items: [{key: a, path: one/a}]}}
			    - {secret: {name: sec, items: [{key: key, path: two/key}]}}
			    - {configMap: {name: missing, optional: true}}
			    - {downwardAPI: {items: [{path: three/ns, fieldRef: {fieldPath: metadata.namespace}}]}}
			containers:
			`+box("c", "resources: {limits: {cpu: 250m}}, volumeMounts: [{name: cm, mountPath: /cm}, "+
			"{name: item, mountPath: /item}, {name: sec, mountPath: /sec}, {name: none, mountPath: /none}, "+
			"{name: info, mountPath: /info}, {name: all, mountPath: /all}]",
			"stat /cm/a /cm/..data", "stat /cm/..data/a /item/deep/er /sec/..data/key", "stat /none",
			"cat /cm/a", "print", "cat /item/deep/er", "print", "cat /sec/key", "print", "cat /info/labels", "print",
			"cat /info/name", "print", "cat /info/cpu", "print",
			"cat /all/one/a", "print", "cat /all/two/key", "print", "cat /all/three/ns", "print", "mounts", end,
			"sleep")))
		log := s.WaitOutput("content", "c")
		s.contains("inside", log, "/cm/a Lrwxrwxrwx", "-> ..data/a", "/cm/..data/a -r--r-----",
			"/item/deep/er -r--------", "/sec/..data/key -rw-r--r--", "/none d",
			"\nalpha\n", "\nbeta\n", "\nhidden\n", `app="x"`, "\ncontent\n", "\n250\n", "\n"+s.ns+"\n")
		for line := range strings.Lines(log) {
			if f := strings.Fields(line); len(f) > 8 && f[4] == "/sec" && !strings.Contains(line, "tmpfs") {
				t.Errorf("the secret volume is not a tmpfs: %s", line)
			}
		}
	})
}

func TestScenario08_ConfigMapChangeReachesFile(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Put("cm", configMap("cm", "word: first"))
		s.Pod("reads", `
			volumes: [{name: v, configMap: {name: cm}}]
			containers:
			`+box("c", "volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /fixed, subPath: word}]",
			"follow /v/word 10ms"))
		before := s.Running("reads")
		s.WaitLog("reads", "c", "first")
		file := filepath.Join(s.Agent.RootDir, "pods", string(before.UID), "volumes", "kubernetes.io~configmap", "v",
			"word")
		start := time.Now()
		s.Put("cm", configMap("cm", "word: second"))
		s.WaitLog("reads", "c", "second")
		t.Logf("the container observed the change after %s", time.Since(start))
		if got := readFile(t, file); got != "second" {
			t.Errorf("file on the host: got %q, want \"second\"", got)
		}
		if got := s.Exec("reads", "c", "/bin/testbox", "cat", "/v/word", ",", "print", ",", "cat",
			"/fixed"); got != "second\nfirst" {
			t.Errorf("files in the container: got %q, want \"second\" and an unchanged subPath \"first\"", got)
		}
		if p := s.Get("reads"); p.UID != before.UID || status(p, "c").RestartCount != 0 {
			t.Error("the change replaced or restarted the pod")
		}
	})
}

func TestPodWaitsForMissingConfigMap(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("env", "containers:\n"+box("c", "env: [{name: X, valueFrom: {configMapKeyRef: {name: later, key: x}}}]",
			"env X", end, "sleep"))
		s.Pod("volume", "volumes: [{name: v, configMap: {name: later}}]\ncontainers:\n"+
			box("c", "volumeMounts: [{name: v, mountPath: /v}]", "cat /v/x", "print", end, "sleep"))
		p := s.Waiting("env", "c", "CreateContainerConfigError")
		s.contains("the message", status(p, "c").State.Waiting.Message, "configmap", "later", "not found")
		s.contains("the event", s.Event("volume", "FailedMount: "), "later", "not found")
		s.waitWhy("volume", "later", "not found")
		s.waitWhy("env", "later", "not found")
		// A ConfigMap without the key has another message.
		s.Put("later", configMap("later", "y: other"))
		p = s.Wait("env", "missing a key", func(p *corev1.Pod) bool {
			w := status(p, "c").State.Waiting
			return w != nil && strings.Contains(w.Message, "key")
		})
		s.contains("the message", status(p, "c").State.Waiting.Message, "x", "later")
		s.Put("later", configMap("later", "x: here, y: other"))
		s.contains("the variable", s.WaitOutput("env", "c"), "here")
		s.contains("the file", s.WaitOutput("volume", "c"), "here")
	})
}

func TestSubPathsReadOnlyAndFSGroup(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("sub", `
			securityContext: {fsGroup: 4321, runAsUser: 1234}
			volumes: [{name: v, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}]
			containers:
			`+box("c", `env: [{name: WHO, valueFrom: {fieldRef: {fieldPath: metadata.name}}}], `+
			`volumeMounts: [{name: v, mountPath: /all}, {name: v, mountPath: /one, subPath: a/b}, `+
			`{name: v, mountPath: /expr, subPathExpr: x-$(WHO)}, {name: v, mountPath: /ro, readOnly: true}, `+
			`{name: m, mountPath: /m}]`,
			"stat /all /m", "id", "write /one/f 1", "write /expr/g 2", "stat /all/a/b/f /all/x-sub/g", end,
			"write /ro/h 3"))
		log := s.WaitOutput("sub", "c")
		s.contains("inside", log, "/all dgrwxrwxrwx 0:4321", "/m dgrwxrwxrwx 0:4321", "uid=1234", "4321",
			"/all/a/b/f -rw-r--r-- 1234:4321", "/all/x-sub/g -rw")
		s.contains("a write to a read-only mount", s.WaitLog("sub", "c", "/ro/h"), "read-only file system")
	})
}

func TestSubPathStaysInVolume(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		if err := os.Symlink("/etc", dir+"/out"); err != nil {
			t.Fatal(err)
		}
		s.Pod("escape", "volumes: [{name: v, hostPath: {path: "+dir+"}}]\ncontainers:\n"+
			box("c", "volumeMounts: [{name: v, mountPath: /v, subPath: out}]", "ls /v", end, "sleep"))
		p := s.Wait("escape", "failing to create", func(p *corev1.Pod) bool {
			w := status(p, "c").State.Waiting
			return w != nil && w.Reason != "ContainerCreating"
		})
		s.contains("the message", status(p, "c").State.Waiting.Message, "out")
	})
}

// TestEnvFromFileOfInitContainer follows the documentation page "Define Environment Variable Values
// Using An Init Container". The container that uses the file does not mount the volume.
func TestEnvFromFileOfInitContainer(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		env := func(key, more string) string {
			return "env: [{name: DB, valueFrom: {fileKeyRef: {volumeName: config, path: data/app.env, key: " + key +
				more + "}}}, {name: URL, value: 'db://$(DB)'}]"
		}
		pod := func(name, file, use string) {
			s.Pod(name, "restartPolicy: Never\nvolumes: [{name: config, emptyDir: {}}]\ninitContainers:\n"+
				sh("make", "volumeMounts: [{name: config, mountPath: /v}]", "mkdir /v/data && printf \"%b\" \""+file+
					"\" > /v/data/app.env")+
				"containers:\n"+sh("use", use, "echo db=$DB url=$URL; ls /v"))
		}
		pod("good", "# made here\\\\nDB_ADDRESS='address 1'\\\\n", env("DB_ADDRESS", ""))
		s.Phase("good", corev1.PodFailed) // ls finds no volume
		s.WaitLog("good", "use", "db=address 1 url=db://address 1")
		pod("optional", "OTHER=''", env("DB_ADDRESS", ", optional: true"))
		s.Phase("optional", corev1.PodFailed)
		s.WaitLog("optional", "use", "db= url=db://$(DB)")
		for name, x := range map[string]struct{ file, why string }{
			"nokey": {"OTHER='x'", `environment variable key "DB_ADDRESS" not found`},
			"plain": {"DB_ADDRESS=x", "invalid environment variable format at line 1"},
		} {
			pod(name, x.file, env("DB_ADDRESS", ""))
			p := s.Waiting(name, "use", "CreateContainerConfigError")
			s.contains("the message", status(p, "use").State.Waiting.Message, "app.env", x.why)
		}
	})
}

func TestRecursiveReadOnlyMounts(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		dir := t.TempDir()
		pod := func(name, mode string) {
			s.Pod(name, "volumes: [{name: v, hostPath: {path: "+dir+"}}]\ncontainers:\n"+
				box("c", "volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: "+mode+"}]",
					"print", end, "write /v/x y"))
		}
		pod("possible", "IfPossible")
		s.contains("a write", s.WaitLog("possible", "c", "/v/x"), "read-only file system")
		want := corev1.RecursiveReadOnlyDisabled
		if s.supports("recursive read-only mounts") {
			want = corev1.RecursiveReadOnlyEnabled
		}
		for _, m := range status(s.Get("possible"), "c").VolumeMounts {
			if m.RecursiveReadOnly == nil || *m.RecursiveReadOnly != want {
				t.Errorf("mount status: got %+v, want %s", m, want)
			}
		}
		pod("enabled", "Enabled")
		if s.supports("recursive read-only mounts") {
			s.contains("a write", s.WaitLog("enabled", "c", "/v/x"), "read-only file system")
			return
		}
		p := s.Wait("enabled", "failing to create", func(p *corev1.Pod) bool {
			w := status(p, "c").State.Waiting
			return w != nil && strings.HasPrefix(w.Reason, "CreateContainer")
		})
		s.contains("the message", status(p, "c").State.Waiting.Message, "recursive")
	})
}

func TestUnsupportedVolumeIsRejectedByField(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, s *Namespace) {
		s.Pod("nfs", "volumes: [{name: v, nfs: {server: files.example, path: /}}]\ncontainers:\n"+
			box("c", "volumeMounts: [{name: v, mountPath: /v}]", "sleep"))
		if f := s.waitInvalidManifest("nfs"); f.Field != "spec.volumes[0].nfs" &&
			!strings.Contains(f.Message, "spec.volumes[0].nfs") || !strings.Contains(f.Message, "not supported") {
			t.Errorf("%+v", f)
		}
	})
}
