import com.google.common.hash.Hashing;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.TreeMap;

/** One window for each line of input: `crc:base64 of the UTF-8 name`, separated by blanks. One hash for each line. */
class GuavaFingerprints {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            answers.append(fingerprint(line)).append('\n');
        }
        System.out.print(answers);
    }

    static long fingerprint(String line) {
        TreeMap<String, Long> crcs = new TreeMap<>(); // String.compareTo: by UTF-16 code unit
        for (String pair : line.isBlank() ? new String[0] : line.split(" ")) {
            String[] parts = pair.split(":", 2);
            crcs.put(new String(Base64.getDecoder().decode(parts[1]), StandardCharsets.UTF_8), Long.parseLong(parts[0]));
        }
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        crcs.forEach((name, crc) -> {
            bytes.writeBytes(name.getBytes(StandardCharsets.UTF_8));
            bytes.write(0);
            bytes.writeBytes(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN).putLong(crc).array());
            bytes.write('\n');
        });
        return Hashing.farmHashFingerprint64().hashBytes(bytes.toByteArray()).asLong();
    }
}
