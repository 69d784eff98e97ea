import java.lang.instrument.ClassFileTransformer;
import java.lang.instrument.Instrumentation;
import java.nio.charset.StandardCharsets;
import java.security.ProtectionDomain;
import java.util.Arrays;
import java.util.List;
import org.objectweb.asm.ClassReader;
import org.objectweb.asm.ClassVisitor;
import org.objectweb.asm.ClassWriter;
import org.objectweb.asm.MethodVisitor;
import org.objectweb.asm.Opcodes;

/**
 * Java agent: the JVM believes that it is another day. The argument is an offset in milliseconds.
 *
 * Behind each call of System.currentTimeMillis() an addition of the offset is woven in, and likewise in java.time.Clock
 * behind the native call that its instants come from. Monotonic time (nanoTime) stays true, so timeouts and sessions work.
 */
public final class ShiftedClock implements ClassFileTransformer {
    /** A call whose result is moved, and by how much. */
    private record Call(String owner, String method, long add) {
        boolean mentionedIn(byte[] code) {
            byte[] name = method.getBytes(StandardCharsets.US_ASCII);
            for (int at = 0; at + name.length <= code.length; at++) {
                if (code[at] == name[0] && Arrays.equals(code, at, at + name.length, name, 0, name.length)) {
                    return true;
                }
            }
            return false;
        }
    }

    private final Call system;
    private final Call instants;

    private ShiftedClock(long millis) {
        system = new Call("java/lang/System", "currentTimeMillis", millis);
        // The native method takes the second that its caller believes in, and fails when it is far off. So what is
        // moved is its result, the nanoseconds to add.
        instants = new Call(null, "getNanoTimeAdjustment", millis * 1_000_000);
    }

    public static void premain(String millis, Instrumentation instrumentation) throws Exception {
        instrumentation.addTransformer(new ShiftedClock(Long.parseLong(millis)), true);
        for (String loadedBefore : List.of("java.time.Clock", "java.time.Clock$SystemClock", "java.util.Date")) {
            instrumentation.retransformClasses(Class.forName(loadedBefore));
        }
    }

    @Override
    public byte[] transform(ClassLoader loader, String name, Class<?> before, ProtectionDomain domain, byte[] code) {
        if (name == null || name.startsWith("java/lang/")) {
            return null;
        }
        List<Call> calls = name.equals("java/time/Clock") ? List.of(system, instants) : List.of(system);
        if (calls.stream().noneMatch(call -> call.mentionedIn(code))) {
            return null;
        }
        ClassReader in = new ClassReader(code);
        ClassWriter out = new ClassWriter(in, ClassWriter.COMPUTE_MAXS);
        in.accept(new ClassVisitor(Opcodes.ASM9, out) {
            @Override
            public MethodVisitor visitMethod(int access, String method, String type, String generic, String[] thrown) {
                MethodVisitor next = super.visitMethod(access, method, type, generic, thrown);
                return new MethodVisitor(Opcodes.ASM9, next) {
                    @Override
                    public void visitMethodInsn(int op, String owner, String called, String of, boolean isInterface) {
                        super.visitMethodInsn(op, owner, called, of, isInterface);
                        for (Call call : calls) {
                            if (op == Opcodes.INVOKESTATIC && called.equals(call.method())
                                    && (call.owner() == null || call.owner().equals(owner))) {
                                visitLdcInsn(call.add());
                                visitInsn(Opcodes.LADD);
                            }
                        }
                    }
                };
            }
        }, 0);
        return out.toByteArray();
    }
}
