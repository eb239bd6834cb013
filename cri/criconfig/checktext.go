package criconfig

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// checkText finds the first string in a message that gRPC cannot send or that the kernel would
// truncate, and names its field. The text may be a secret and is not part of the error.
func checkText(m proto.Message) error {
	return checkMessage(m.ProtoReflect())
}

func checkMessage(m protoreflect.Message) (err error) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(f.Name())
		switch {
		case f.IsMap():
			err = checkMap(name, f, v.Map())
		case f.IsList():
			list := v.List()
			for i := 0; i < list.Len() && err == nil; i++ {
				err = checkValue(fmt.Sprintf("%s[%d]", name, i), f, list.Get(i))
			}
		default:
			err = checkValue(name, f, v)
		}
		return err == nil
	})
	return err
}

func checkMap(name string, f protoreflect.FieldDescriptor, m protoreflect.Map) (err error) {
	m.Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
		if f.MapKey().Kind() == protoreflect.StringKind {
			err = checkString(name, k.String())
		}
		if err == nil {
			err = checkValue(name, f.MapValue(), v)
		}
		return err == nil
	})
	return err
}

func checkValue(name string, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.StringKind:
		return checkString(name, v.String())
	case protoreflect.MessageKind:
		if err := checkMessage(v.Message()); err != nil {
			return fmt.Errorf("%s.%w", name, err)
		}
	}
	return nil
}

func checkString(name, s string) error {
	switch {
	case !utf8.ValidString(s):
		return fmt.Errorf("%s: text is not valid UTF-8", name)
	case strings.IndexByte(s, 0) >= 0:
		return fmt.Errorf("%s: text has a NUL byte", name)
	}
	return nil
}
