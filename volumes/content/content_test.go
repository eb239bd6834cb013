package content

import (
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"berth/agent/plan"
)

func objects() plan.Objects {
	return plan.Objects{
		{Kind: plan.ConfigMap, Name: "cfg"}: {ConfigMap: &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "cfg"},
			Data:       map[string]string{"a": "1", "b": "2"}, BinaryData: map[string][]byte{"bin": {0, 1}},
		}},
		{Kind: plan.Secret, Name: "key"}: {Secret: &corev1.Secret{
			Data:       map[string][]byte{"a": []byte("hush"), "pw": []byte("hush")},
			StringData: map[string]string{"pw": "new"},
		}},
		{Kind: plan.ServiceAccountToken, Name: "3600/vault"}: {Token: "hush"},
		{Kind: plan.PodCertificates, Name: "v/1"}: {
			PodCertificate: &plan.PodCertificate{Key: "k", Chain: "c"}},
		{Kind: plan.ClusterTrustBundle, Name: "root"}:              {TrustBundle: "root"},
		{Kind: plan.ClusterTrustBundle, Name: "example.com/a?x=y"}: {TrustBundle: "of a"},
		{Kind: plan.ClusterTrustBundle, Name: "gone"}:              {Version: plan.Version{Missing: true}},
		{Kind: plan.ClusterTrustBundle, Name: "broken"}:            {Version: plan.Version{Err: "server is away"}},
		{Kind: plan.ConfigMap, Name: "gone"}:                       {Version: plan.Version{Missing: true}},
		{Kind: plan.Secret, Name: "gone"}:                          {Version: plan.Version{Missing: true}},
		{Kind: plan.ConfigMap, Name: "broken"}:                     {Version: plan.Version{Err: "server is away"}},
	}
}

func inputs() Inputs {
	return Inputs{
		Objects: objects(),
		Field: func(p string) (string, error) {
			if p == "bad" {
				return "", errors.New(`field "bad" is not supported`)
			}
			return "field " + p, nil
		},
		Resource: func(s *corev1.ResourceFieldSelector) (string, error) {
			return s.ContainerName + " " + s.Resource, nil
		},
	}
}

func cm(name string, change func(*corev1.ConfigMapVolumeSource)) corev1.VolumeSource {
	src := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}}
	if change != nil {
		change(src)
	}
	return corev1.VolumeSource{ConfigMap: src}
}

func sec(name string, items ...corev1.KeyToPath) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, Items: items}}
}

func proj(sources ...corev1.VolumeProjection) corev1.VolumeSource {
	return corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources,
		DefaultMode: new(int32(0o440))}}
}

func cmProj(name string, items ...corev1.KeyToPath) corev1.VolumeProjection {
	return corev1.VolumeProjection{
		ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name},
			Items: items},
	}
}

func secProj(name string, items ...corev1.KeyToPath) corev1.VolumeProjection {
	return corev1.VolumeProjection{
		Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items},
	}
}

// trustProj returns a projection of ClusterTrustBundles by name, or by signer and labels, to a file in PEM.
func trustProj(name, signer string, labels map[string]string, optional bool) corev1.VolumeProjection {
	p := &corev1.ClusterTrustBundleProjection{Optional: &optional}
	if name != "" {
		p.Name, p.Path = &name, name+".pem"
	} else {
		domain, _, _ := strings.Cut(signer, "/")
		p.SignerName, p.Path = &signer, domain+".pem"
		p.LabelSelector = &metav1.LabelSelector{MatchLabels: labels}
	}
	return corev1.VolumeProjection{ClusterTrustBundle: p}
}

func text(s string, mode uint32) File { return File{Data: []byte(s), Mode: mode} }

func TestBuild(t *testing.T) {
	t.Parallel()
	item := func(key, p string) corev1.KeyToPath { return corev1.KeyToPath{Key: key, Path: p} }
	down := func(items ...corev1.DownwardAPIVolumeFile) corev1.VolumeSource {
		return corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: items}}
	}
	for name, tc := range map[string]struct {
		src  corev1.VolumeSource
		want Files
		err  string
		kind plan.ErrorKind
	}{
		"a configMap gives every key of data and binaryData": {
			src:  cm("cfg", nil),
			want: Files{"a": text("1", 0o644), "b": text("2", 0o644), "bin": {Data: []byte{0, 1}, Mode: 0o644}},
		},
		"items choose keys, paths, modes and owners": {
			src: cm("cfg", func(s *corev1.ConfigMapVolumeSource) {
				s.DefaultMode, s.DefaultUser = new(int32(0o400)), new(int64(7))
				s.Items = []corev1.KeyToPath{{Key: "a", Path: "x/y"}, {Key: "b", Path: "z", Mode: new(int32(0o755)),
					User: new(int64(8))}}
			}),
			want: Files{
				"x/y": {Data: []byte("1"), Mode: 0o400, UID: new(int64(7))},
				"z":   {Data: []byte("2"), Mode: 0o755, UID: new(int64(8))},
			},
		},
		"the stringData of a Secret from a file wins over its data": {
			src: sec("key"), want: Files{"a": text("hush", 0o644), "pw": text("new", 0o644)},
		},
		"a missing configMap is named": {src: cm("gone", nil), err: `configmap "gone" not found`, kind: plan.NotFound},
		"a missing secret is named":    {src: sec("gone"), err: `secret "gone" not found`, kind: plan.NotFound},
		"a missing optional configMap has no files": {src: cm("gone", func(s *corev1.ConfigMapVolumeSource) {
			s.Optional = new(true)
		}), want: Files{}},
		"an optional configMap has no files for items when missing": {
			src: cm("gone", func(s *corev1.ConfigMapVolumeSource) {
				s.Optional, s.Items = new(true), []corev1.KeyToPath{item("a", "a")}
			}), want: Files{},
		},
		"a missing key is named": {src: cm("cfg", func(s *corev1.ConfigMapVolumeSource) {
			s.Items = []corev1.KeyToPath{item("no", "p")}
		}), err: "references non-existent config key: no", kind: plan.NotFound},
		"a missing key of a secret is named": {src: sec("key", item("no", "p")),
			err: "references non-existent secret key: no", kind: plan.NotFound},
		"a missing key of an optional one is left out": {
			src: cm("cfg", func(s *corev1.ConfigMapVolumeSource) {
				s.Optional, s.Items = new(true), []corev1.KeyToPath{item("no", "p"), item("a", "q")}
			}), want: Files{"q": text("1", 0o644)},
		},
		"an object that cannot be read says why and is tried again": {src: cm("broken", nil),
			err: `configmap "broken": server is away`, kind: plan.Other},
		"an object that was not read is tried again": {src: cm("new", nil),
			err: `configmap "new" has not been read yet`, kind: plan.Other},
		"downwardAPI items are fields and resources": {
			src: down(
				corev1.DownwardAPIVolumeFile{Path: "labels",
					FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}, Mode: new(int32(0o600))},
				corev1.DownwardAPIVolumeFile{Path: "cpu",
					ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "c", Resource: "limits.cpu"}},
			), want: Files{"labels": text("field metadata.labels", 0o600), "cpu": text("c limits.cpu", 0o644)},
		},
		"a downwardAPI field that does not exist is named": {
			src: down(corev1.DownwardAPIVolumeFile{Path: "x", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "bad"}}),
			err: `downwardAPI item "x": field "bad"`, kind: plan.Invalid,
		},
		"a downwardAPI item without a source is refused": {src: down(corev1.DownwardAPIVolumeFile{Path: "x"}),
			err: "neither fieldRef", kind: plan.Invalid},
		"projected sources come together with the volume's mode": {
			src:  proj(cmProj("cfg", item("a", "c/a")), secProj("key", item("a", "s/a"))),
			want: Files{"c/a": text("1", 0o440), "s/a": text("hush", 0o440)},
		},
		"of equal names from keys the source named last wins": {
			src:  proj(secProj("key"), cmProj("cfg", item("b", "b"), item("a", "a"))),
			want: Files{"a": text("1", 0o440), "b": text("2", 0o440), "pw": text("new", 0o440)},
		},
		"two sources with the same written path are refused": {
			src: proj(cmProj("cfg", item("a", "x")), secProj("key", item("a", "x"))),
			err: `path "x" is used by more than one source`, kind: plan.Invalid,
		},
		"a path inside a file is refused": {
			src: proj(cmProj("cfg", item("a", "x")), cmProj("cfg", item("b", "x/y"))),
			err: `path "x/y" lies inside "x"`, kind: plan.Invalid,
		},
		"a service account token is the pod's own": {
			src: proj(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token",
				Audience: "vault"}}),
			want: Files{"token": text("hush", 0o440)},
		},
		"a service account token that no server gives is missed": {
			src: proj(cmProj("cfg"),
				corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}),
			err: "no service account token", kind: plan.NotFound,
		},
		"a pod certificate in one file and in two": {
			src: proj(cmProj("cfg", item("a", "a")), corev1.VolumeProjection{
				PodCertificate: &corev1.PodCertificateProjection{CredentialBundlePath: "both", KeyPath: "key",
					CertificateChainPath: "chain", User: new(int64(8))}}),
			want: Files{"a": text("1", 0o440), "both": {Data: []byte("kc"), Mode: 0o440, UID: new(int64(8))},
				"key":   {Data: []byte("k"), Mode: 0o440, UID: new(int64(8))},
				"chain": {Data: []byte("c"), Mode: 0o440, UID: new(int64(8))}},
		},
		"a pod certificate that no server gives is missed": {
			src: proj(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{KeyPath: "key"}}),
			err: "no pod certificate", kind: plan.NotFound,
		},
		"a cluster trust bundle by name and one of a signer": {
			src: proj(trustProj("root", "", nil, false),
				trustProj("", "example.com/a", map[string]string{"x": "y"}, false)),
			want: Files{"root.pem": text("root", 0o440), "example.com.pem": text("of a", 0o440)},
		},
		"a missing cluster trust bundle is named": {src: proj(trustProj("gone", "", nil, false)),
			err: `clustertrustbundle "gone" not found`, kind: plan.NotFound},
		"no cluster trust bundle of a signer": {src: proj(trustProj("", "example.com/b", nil, false)),
			err:  "combined signerName \"example.com/b\" and labelSelector matched zero ClusterTrustBundles",
			kind: plan.NotFound},
		"a missing optional cluster trust bundle is an empty file": {src: proj(trustProj("gone", "", nil, true)),
			want: Files{"gone.pem": text("", 0o440)}},
		"a cluster trust bundle that cannot be read says why": {src: proj(trustProj("broken", "", nil, true)),
			err: "server is away", kind: plan.Other},
		"a path that leads out is refused": {src: sec("key", item("a", "x/../../y")),
			err: "must not contain '..'", kind: plan.Invalid},
		"an absolute path is refused": {src: sec("key", item("a", "/etc/passwd")),
			err: "must be relative", kind: plan.Invalid},
		"a path of the writer's own is refused": {src: sec("key", item("a", "..data")),
			err: "must not start with '..'", kind: plan.Invalid},
		"a path of the writer's own in disguise as well": {src: sec("key", item("a", "./..data")),
			err: "must not start with '..'", kind: plan.Invalid},
		"an emptyDir has no content": {src: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}},
			err: "no content", kind: plan.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := Build(&corev1.Volume{Name: "v", VolumeSource: tc.src}, inputs())
			if tc.err == "" {
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Error(diff)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.err) || plan.KindOf(err) != tc.kind {
				t.Fatalf("error %v of kind %d, want %q of kind %d", err, plan.KindOf(err), tc.err, tc.kind)
			}
			if strings.Contains(err.Error(), "hush") {
				t.Error("C3: the error contains a secret value")
			}
		})
	}
}

// FuzzPaths checks C1 and C2 for arbitrary paths.
func FuzzPaths(f *testing.F) {
	for _, s := range []string{"a", "a/b", "./a", "a//b", "..", "../x", "..data", "/abs", "a/..", "", ".", "a/./..x",
		"x\x00y"} {
		f.Add(s, "a")
	}
	f.Fuzz(func(t *testing.T, p, q string) {
		files, err := Build(
			&corev1.Volume{VolumeSource: sec("key", corev1.KeyToPath{Key: "a", Path: p},
				corev1.KeyToPath{Key: "pw", Path: q})},
			inputs(),
		)
		if err != nil {
			return
		}
		for name := range files {
			if path.Clean(name) != name || path.IsAbs(name) || strings.HasPrefix(name, "..") ||
				strings.ContainsRune(name, 0) ||
				name == "." {
				t.Errorf("C1: %q from %q, %q", name, p, q)
			}
			for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
				if _, ok := files[dir]; ok {
					t.Errorf("C2: %q is a file and a directory", dir)
				}
			}
			// fs.ValidPath requires UTF-8, which file names do not.
			if strings.ToValidUTF8(name, "") == name && !fs.ValidPath(name) {
				t.Errorf("C1: %q is not a valid path", name)
			}
		}
	})
}
